package main

import (
	"archive/tar"
	"compress/gzip"
	"os"
	"time"
)

// An entry is a file of an archive: the content of another file, or a text.
type entry struct {
	name, from string
	text       []byte
	mode       int64
}

// packed is the time that all files of an archive have. The time of the build would make two builds differ; 1970 is
// refused by some programs that unpack.
var packed = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// pack writes entries into a compressed archive, below a folder of the name root, with nothing in it that depends on when,
// where and by which user it is made.
func pack(archive, root string, entries []entry) error {
	file, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	compressed := gzip.NewWriter(file)
	out := tar.NewWriter(compressed)
	for _, e := range entries {
		text := e.text
		if e.from != "" {
			if text, err = os.ReadFile(e.from); err != nil {
				return err
			}
		}
		header := tar.Header{
			Typeflag: tar.TypeReg, Name: root + "/" + e.name, Mode: e.mode, Size: int64(len(text)), ModTime: packed, Format: tar.FormatUSTAR,
		}
		if err := out.WriteHeader(&header); err != nil {
			return err
		}
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	if err := compressed.Close(); err != nil {
		return err
	}
	return file.Close()
}
