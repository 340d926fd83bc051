package doctor_test

import (
	"testing"

	"github.com/backendstart/walpost/internal/doctor"
	"github.com/backendstart/walpost/internal/testdb"
)

// S-85
func TestTLS_isWantedOnTheWayToAnotherMachine(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]doctor.Level{
		"postgres://relay@db.example/school":                     doctor.Warning,
		"host=db.example user=relay":                             doctor.Warning,
		"postgres://relay@db.example/school?sslmode=prefer":      doctor.Warning,
		"postgres://relay@db.example/school?sslmode=allow":       doctor.Warning,
		"postgres://relay@localhost,db.example/school":           doctor.Warning,
		"postgres://relay@db.example/school?sslmode=verify-full": "",
		"postgres://relay@db.example/school?sslmode=require":     "",
		"postgres://relay@db.example/school?sslmode=disable":     "",
		"postgres://relay@localhost/school":                      "",
		"postgres://relay@127.0.0.1/school":                      "",
		"postgres://relay@[::1]/school":                          "",
		"host=/run/postgresql user=relay":                        "",
	} {
		found, err := doctor.JudgeTLS("database_url", dsn)
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
		}
		if got := level(found); got != want {
			t.Errorf("%s is %q, want %q", dsn, got, want)
		}
	}
	h := newHarnessOn(t, nil, testdb.New(t))
	if found := h.check("tls"); found[0].Level != doctor.OK {
		t.Errorf("on this machine the doctor says%s", describe(found))
	}
}
