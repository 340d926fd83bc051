package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/backendstart/walpost/internal/mask"
	"github.com/backendstart/walpost/internal/printable"
	"github.com/backendstart/walpost/internal/subscriber"
)

const (
	// maxAnswer is how long a good answer may be. It is read in pieces that no one keeps, so the limit is only
	// against one that does not end: a receiver that answers with a page of HTML has taken the event.
	maxAnswer = 1 << 20
	// maxRest is how much of a refusal is read beyond what is kept, so that its connection can be used again;
	// and how long the headers of an answer may be, which stand in memory.
	maxRest = 64 << 10
	// maxExcerpt is how much of a refusal is kept with the failure.
	maxExcerpt = 2 << 10
	// maxSkew is how far the receiver's clock may be off before a refusal mentions it. Standard Webhooks
	// libraries refuse timestamps that are 5 minutes off.
	maxSkew = time.Minute
	// maxWait keeps a Retry-After of many digits from overflowing; the lane has a lower limit of its own.
	maxWait = 365 * 24 * time.Hour
)

// judge makes of an answer what the lane is to do. docs/webhooks.md has the table.
func (w *Webhook) judge(ctx context.Context, response *http.Response, header *headers, sent int) error {
	status := response.StatusCode
	if status >= 200 && status <= 299 {
		if err := readToEnd(response); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return fmt.Errorf("post to %s: answered %d, but its body: %w", w.request.Host, status, err)
		}
		return nil
	}
	var text strings.Builder
	fmt.Fprintf(&text, "post to %s: answered %d %s", w.request.Host, status, http.StatusText(status))
	switch {
	case status == http.StatusRequestEntityTooLarge:
		fmt.Fprintf(&text, " to a body of %d bytes", sent)
	case status >= 300 && status <= 399:
		text.WriteString(": redirects are not followed, url has to name the address itself")
	}
	text.WriteString(skew(response.Header.Get("Date"), time.Now()))
	if excerpt := excerptOf(response, header.masking()); excerpt != "" {
		text.WriteString(": " + excerpt)
	}
	err := errors.New(text.String())
	switch status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return subscriber.Permanent(err)
	case http.StatusGone:
		return subscriber.Pause(err)
	}
	if wait := retryAfter(response.Header.Get("Retry-After"), time.Now()); wait > 0 {
		return subscriber.RetryAfter(err, wait)
	}
	return err
}

// readToEnd reads a good answer, of which nothing is wanted but that it ends: only then can the connection
// be used again, and only then is it certain that the receiver is done.
func readToEnd(response *http.Response) error {
	if response.ContentLength == 0 {
		return nil
	}
	n, err := io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswer+1))
	if err == nil && n > maxAnswer {
		return fmt.Errorf("does not end within %d bytes; a receiver of webhooks answers briefly", maxAnswer)
	}
	return err
}

// excerptOf reads the beginning of a refusal as text for tables, logs and terminals, without our secrets. It is masked
// before it is cut, or the cut could leave a part of one. That it breaks off
// changes nothing about the refusal.
func excerptOf(response *http.Response, secrets *mask.Mask) string {
	if response.StatusCode < 200 {
		return "" // 101: what follows is no body, and does not end with the context
	}
	start, err := io.ReadAll(io.LimitReader(response.Body, 2*maxExcerpt))
	if err == nil && len(start) == 2*maxExcerpt {
		_, _ = io.CopyN(io.Discard, response.Body, maxRest) // so that the connection can be used again
	}
	clean := func(r rune) rune {
		if unicode.IsControl(r) || printable.IsHidden(r) {
			return ' '
		}
		return r
	}
	text := secrets.Text(string(start))
	text = text[:min(len(text), maxExcerpt)]
	return strings.TrimSpace(strings.Map(clean, strings.ToValidUTF8(text, "\uFFFD")))
}

// retryAfter reads seconds or an HTTP date (RFC 9110, section 10.2.3); anything else is no wish.
func retryAfter(value string, now time.Time) time.Duration {
	if value == "" {
		return 0
	}
	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(max(seconds, 0), int64(maxWait/time.Second))) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), maxWait)
}

// skew names a difference of the clocks that makes receivers refuse signatures.
func skew(date string, now time.Time) string {
	at, err := http.ParseTime(date)
	if err != nil {
		return ""
	}
	switch off := at.Sub(now).Round(time.Second); {
	case off > maxSkew:
		return fmt.Sprintf(" (the receiver's clock is %s ahead of ours: one of them is wrong)", off)
	case off < -maxSkew:
		return fmt.Sprintf(" (the receiver's clock is %s behind ours: one of them is wrong)", -off)
	}
	return ""
}
