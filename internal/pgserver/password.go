package pgserver

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
)

// verifier is what a server stores of a password, in the form that it takes in place of one. (PostgreSQL manual,
// "pg_authid")
//
// Its one iteration is enough: iterations make guesses expensive, and a random password of 128 bits cannot be guessed.
// The 4,096 that Postgres takes by default cost a client that is built with the race detector 20 ms for each
// connection, which was half of the time of some packages' tests.
func verifier(password string) (string, error) {
	const iterations = 1
	salt := make([]byte, 16)
	rand.Read(salt) // never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		return "", fmt.Errorf("hash the server's password: %w", err)
	}
	sign := func(key []byte, text string) []byte {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	stored := sha256.Sum256(sign(salted, "Client Key"))
	base := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, base(salt), base(stored[:]), base(sign(salted, "Server Key"))), nil
}
