//go:build outside

package examples

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"

	"github.com/backendstart/walpost/internal/pgserver"
	"github.com/backendstart/walpost/internal/testprogram"
)

// Two browsers follow one game, one over WebSocket and one over server-sent events. One is cut off, moves go on, it comes
// back, and both show the same revision. Then the same with the other one.
func TestOutsideExamples_twoBrowsersShowTheSameGame(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var out bytes.Buffer
	r := &runner{ctx: ctx, folder: folder("game"), program: testprogram.Binary(t), out: &out, env: os.Environ()}
	defer r.cleanUp()
	defer func() {
		if failed, is := recover().(failure); is {
			t.Fatalf("%v\n%s", failed.error, out.String())
		}
	}()
	server, err := pgserver.Start(ctx, pgserver.Options{Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Fatal(err)
	}
	r.Cleanup(func() { _ = server.Stop(context.WithoutCancel(ctx)) })
	db, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	r.Cleanup(func() { _ = db.Close(context.WithoutCancel(ctx)) })
	pages := httptest.NewServer(http.FileServer(http.Dir(r.folder)))
	r.Cleanup(pages.Close)
	r.env = append(r.env, "WALPOST_DATABASE_URL="+server.DSN("postgres"), "WALPOST_OPS_LISTEN=127.0.0.1:0", "WALPOST_LOG_FORMAT=text")
	hub := newHub(r, pages.URL)
	r.execute(db, "schema.sql")
	r.walpost("migrate")
	relay := r.startRelay()
	move := func(n int) {
		for range n {
			if _, err := db.Exec(ctx, "SELECT move('42', 1 + floor(random() * 9)::int, 'x')"); err != nil {
				t.Fatal(err)
			}
		}
	}

	address := fmt.Sprintf("%s/#server=http://%s&game=42&token=%s", pages.URL, hub.address, hub.token)
	first, second := openBrowser(t, ctx, address), openBrowser(t, ctx, address+"&by=sse")
	first.shows(t, "state", "live")
	second.shows(t, "state", "live")
	move(3)
	first.shows(t, "revision", "3")
	second.shows(t, "revision", "3")
	first.click(t, "cut")
	move(4)
	second.shows(t, "revision", "7")
	first.shows(t, "revision", "3")
	first.click(t, "back")
	first.shows(t, "revision", "7")
	second.click(t, "cut")
	move(5)
	first.shows(t, "revision", "12")
	second.shows(t, "revision", "7")
	second.click(t, "back")
	second.shows(t, "revision", "12")
	// Over a restart of the relay both come back by themselves.
	r.stopRelay(relay)
	move(2)
	relay = r.startRelay()
	for _, b := range []*browser{first, second} {
		b.shows(t, "revision", "14")
		if gaps, err := chromedp.Run(b.ctx, chromedp.Evaluate[int]("gaps")); err != nil || gaps != 0 {
			t.Errorf("%d gaps, %v", gaps, err)
		}
	}
	r.stopRelay(relay)
}

// browser is a Chromium of its own.
type browser struct{ ctx context.Context }

func openBrowser(t *testing.T, ctx context.Context, address string) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is needed: apt-get install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-dev-shm-usage", true))
	allocator, end := chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(end)
	b := &browser{}
	var closeBrowser context.CancelFunc
	b.ctx, closeBrowser = chromedp.NewContext(allocator)
	t.Cleanup(closeBrowser)
	if err := chromedp.Do(b.ctx, chromedp.Navigate(address)); err != nil {
		t.Fatalf("open %s: %v", address, err)
	}
	return b
}

func (b *browser) text(t *testing.T, id string) string {
	t.Helper()
	text, err := chromedp.Run(b.ctx, chromedp.Text(chromedp.CSS("#"+id)))
	if err != nil {
		t.Fatalf("read %s: %v", id, err)
	}
	return text
}

func (b *browser) shows(t *testing.T, id, want string) {
	t.Helper()
	got := ""
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(50 * time.Millisecond) {
		if got = b.text(t, id); got == want {
			return
		}
	}
	t.Fatalf("the page shows %s %q, want %q", id, got, want)
}

func (b *browser) click(t *testing.T, id string) {
	t.Helper()
	if err := chromedp.Do(b.ctx, chromedp.Click(chromedp.CSS("#"+id))); err != nil {
		t.Fatalf("click %s: %v", id, err)
	}
}
