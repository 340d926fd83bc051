package file

import "github.com/backendstart/walpost/internal/config"

// Config is what walpost.yaml says of a file apart from what every subscriber has.
type Config struct {
	// Path is where it appends.
	Path string `yaml:"path,omitempty"`
	// Rotate is how large the file may become; 0 is for ever.
	Rotate config.Size `yaml:"rotate,omitempty"`
	Format string      `yaml:"format,omitempty"`
}

// Of makes the options of a subscriber.
func (c *Config) Of(s config.Subscriber) Options {
	return Options{Name: s.Name, Path: c.Path, Format: c.Format, Rotate: int64(c.Rotate)}
}

// Check implements config.Options.
func (c *Config) Check(s config.Subscriber, fail func(string, error)) {
	for _, problem := range c.Of(s).Problems() {
		fail(problem.Key, problem.Err)
	}
}

// SecretTexts implements config.Options: there are none.
func (*Config) SecretTexts() []string { return nil }

// StdoutConfig is what walpost.yaml says of standard output.
type StdoutConfig struct {
	Format string `yaml:"format,omitempty"`
}

// Check implements config.Options.
func (c *StdoutConfig) Check(_ config.Subscriber, fail func(string, error)) {
	for _, problem := range StdoutProblems(c.Format) {
		fail(problem.Key, problem.Err)
	}
}

// SecretTexts implements config.Options: there are none.
func (*StdoutConfig) SecretTexts() []string { return nil }
