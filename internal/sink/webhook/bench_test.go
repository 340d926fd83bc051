package webhook_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/backendstart/walpost/internal/sink/webhook"
)

const benchConcurrency = 64

// each runs post from 64 goroutines, b.N times in all.
func each(b *testing.B, post func() error) {
	b.ReportAllocs()
	work := make(chan struct{}, benchConcurrency)
	var workers sync.WaitGroup
	for range benchConcurrency {
		workers.Go(func() {
			for range work {
				if err := post(); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for b.Loop() {
		work <- struct{}{}
	}
	close(work)
	workers.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "posts/s")
}

func benchReceiver(b *testing.B) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusNoContent)
	}))
	b.Cleanup(server.Close)
	return server
}

var benchPayload = []byte(`{"text": "` + strings.Repeat("x", 238) + `"}`)

// A webhook at concurrency 64 with 250 bytes, to be compared with the bare client below.
func BenchmarkWebhook(b *testing.B) {
	o := options(benchReceiver(b).URL)
	o.Concurrency, o.Timeout = benchConcurrency, time.Minute
	sub, err := webhook.New(o)
	if err != nil {
		b.Fatal(err)
	}
	d := delivery(1)
	d.Payload = benchPayload
	each(b, func() error { return sub.Handle(b.Context(), d) })
}

// The loop that anyone would write, without signature and headers.
func BenchmarkBareClient(b *testing.B) {
	url := benchReceiver(b).URL
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: benchConcurrency, MaxIdleConnsPerHost: benchConcurrency}}
	each(b, func() error {
		response, err := client.Post(url, "application/json", bytes.NewReader(benchPayload))
		if err != nil {
			return err
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, response.Body)
		return err
	})
}
