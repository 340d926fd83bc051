package webhook_test

import (
	"strings"
	"testing"

	"github.com/backendstart/walpost/internal/sink/webhook"
)

func TestProblems_nameTheKeyAndNoSecret(t *testing.T) {
	good := options("https://billing.example/hooks")
	if got := good.Problems(); got != nil {
		t.Fatalf("good options: %v", got)
	}
	const leak = "le4ked"
	for name, test := range map[string]struct {
		change    func(*webhook.Options)
		key, want string
	}{
		"no url":               {func(o *webhook.Options) { o.URL = "" }, "url", "is missing"},
		"url without host":     {func(o *webhook.Options) { o.URL = "http:///hooks" }, "url", "has no host"},
		"url with a port only": {func(o *webhook.Options) { o.URL = "http://:80/hooks" }, "url", "has no host"},
		"url without scheme":   {func(o *webhook.Options) { o.URL = "billing.example/" + leak }, "url", "not an http or https"},
		"another scheme":       {func(o *webhook.Options) { o.URL = "ftp://billing.example/" + leak }, "url", "not an http or https"},
		"opaque url":           {func(o *webhook.Options) { o.URL = "http:billing.example" }, "url", "not an http or https"},
		"url with a password":  {func(o *webhook.Options) { o.URL = "https://u:" + leak + "@billing.example" }, "url", "user and password"},
		"port 0":               {func(o *webhook.Options) { o.URL = "https://billing.example:0" }, "url", "port"},
		"port beyond all":      {func(o *webhook.Options) { o.URL = "https://billing.example:65536" }, "url", "port"},
		"url with a line end":  {func(o *webhook.Options) { o.URL = "https://billing.example/\n" + leak }, "url", "not an http or https"},
		"secret without mark":  {func(o *webhook.Options) { o.Secrets = []string{leak} }, "secret", "whsec_"},
		"secret not base64":    {func(o *webhook.Options) { o.Secrets = []string{"whsec_" + leak + "!"} }, "secret", "base64"},
		"secret too short":     {func(o *webhook.Options) { o.Secrets = []string{"whsec_AAAA"} }, "secret", "24 to 64"},
		"secret too long":      {func(o *webhook.Options) { o.Secrets = []string{"whsec_" + strings.Repeat("A", 88)} }, "secret", "24 to 64"},
		"empty secret":         {func(o *webhook.Options) { o.Secrets = []string{""} }, "secret", "whsec_"},
		"second secret":        {func(o *webhook.Options) { o.Secrets = []string{oldSecret, leak} }, "secret", "2. of 2"},
		"nothing to sign with": {func(o *webhook.Options) { o.Secrets, o.SignHeaders = nil, true }, "sign_headers", "needs a secret"},
		"header's name":        {func(o *webhook.Options) { o.Headers = map[string]string{"a b": leak} }, "headers", `"a b"`},
		"header of ours":       {func(o *webhook.Options) { o.Headers = map[string]string{"WEBHOOK-ID": leak} }, "headers", "by walpost itself"},
		"header of HTTP":       {func(o *webhook.Options) { o.Headers = map[string]string{"host": leak} }, "headers", "by walpost itself"},
		"header with a break":  {func(o *webhook.Options) { o.Headers = map[string]string{"X-A": leak + "\r\nX-B: 1"} }, "headers", "line break"},
		"format":               {func(o *webhook.Options) { o.Format = "xml" }, "format", "cloudevents-structured"},
		"binary batches":       {func(o *webhook.Options) { o.Format, o.Batch = "cloudevents", 2 }, "format", "cloudevents-structured"},
	} {
		o := good
		test.change(&o)
		got := o.Problems()
		if len(got) != 1 || got[0].Key != test.key || !strings.Contains(got[0].Err.Error(), test.want) || strings.Contains(got[0].Err.Error(), leak) {
			t.Errorf("%s: got %v, want one of %s with %q and without the secret", name, got, test.key, test.want)
		}
		if _, err := webhook.New(o); err == nil {
			t.Errorf("%s: New takes it", name)
		}
	}
}

func TestProblems_areAllToldAtOnce(t *testing.T) {
	got := webhook.Options{URL: "http://10.0.0.1/", Secrets: []string{"x", "y"}, Format: "xml", Headers: map[string]string{"Host": "h"}}.Problems()
	if len(got) != 5 {
		t.Errorf("got %v, want 5 problems", got)
	}
}
