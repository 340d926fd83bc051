package eventschema

import (
	"bytes"
	"fmt"
)

// Bounds of a payload that is checked. The library counts in fractions, so that a number costs what it would take written
// out, and it makes an error of each value that does not fit.
const (
	maxValues   = 100_000
	maxNumber   = 1_000 // bytes
	maxExponent = 3     // digits
)

// bounded refuses a payload whose check would cost much more than reading it does. What is no JSON is for others to find.
func bounded(payload []byte) error {
	values := 1
	for i := 0; i < len(payload); i++ {
		switch b := payload[i]; {
		case b == '"':
			i += textLength(payload[i:]) - 1
		case b == ',' || b == '[' || b == '{':
			if values++; values > maxValues {
				return fmt.Errorf("the payload has more than %d values, and its source has a schema, which takes no more", maxValues)
			}
		case b == '-' || b >= '0' && b <= '9':
			length := numberLength(payload[i:])
			number := payload[i : i+length]
			exponent := 0
			if at := bytes.IndexAny(number, "eE"); at >= 0 {
				exponent = len(bytes.TrimLeft(number[at+1:], "+-0"))
			}
			if length > maxNumber || exponent > maxExponent {
				return fmt.Errorf("the payload has a number of more than %d characters or with an exponent of more than %d digits, and its source has a schema, which takes none", maxNumber, maxExponent)
			}
			i += length - 1
		}
	}
	return nil
}

// textLength is the length of the JSON string that begins with text, both quotes included.
func textLength(text []byte) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}

// numberLength is the length of the number that begins with text.
func numberLength(text []byte) int {
	for i, b := range text {
		if (b < '0' || b > '9') && b != '.' && b != '-' && b != '+' && b != 'e' && b != 'E' {
			return i
		}
	}
	return len(text)
}
