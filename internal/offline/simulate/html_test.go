package simulate

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

func busyLog(clients int) string {
	random := rand.New(rand.NewPCG(1, 2))
	var log strings.Builder
	for second := range 600 {
		at := fmt.Sprintf("[01/Jan/2026:00:%02d:%02d +0000]", second/60, second%60)
		for range 1 + random.IntN(20) {
			fmt.Fprintf(&log, `192.0.%d.%d - - %s "GET / HTTP/1.1" 200 1`+"\n", random.IntN(clients)/250, random.IntN(clients)%250, at)
		}
		for range random.IntN(5) {
			fmt.Fprintf(&log, `203.0.113.66 - - %s "GET /search HTTP/1.1" 200 1`+"\n", at)
		}
	}
	return log.String()
}

func htmlOf(t *testing.T, yaml, template, log string) (*Report, string, drawing) {
	t.Helper()
	templates, err := ParseTemplates(Nginx, []string{template})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), Config{
		Snapshot: compiled(t, yaml), Name: "access.log", Input: strings.NewReader(log), Format: Nginx,
		Templates: templates, Domain: "edge", Share: 0.01,
	})
	if err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	if err := r.WriteHTML(t.Context(), &page, "access.log"); err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`).FindStringSubmatch(page.String())
	var d drawing
	if text == nil {
		t.Fatal("the page has no data")
	}
	if err := json.Unmarshal([]byte(text[1]), &d); err != nil {
		t.Fatal(err)
	}
	return r, page.String(), d
}

func TestPageAgreesWithTheReplay(t *testing.T) {
	log := busyLog(300)
	r, _, d := htmlOf(t, perAddress("{algorithm: token_bucket, rate: 3, period: 1m, capacity: 5}"), "remote_address=%h", log)
	points := d.Limits[0].Grid.Points
	if len(points) < 20 {
		t.Fatalf("the page has %d points; want at least 20", len(points))
	}
	sum := func(counts []int64) (n int64) {
		for _, c := range counts {
			n += c
		}
		return n
	}
	if sum(d.Requests) != r.Requests || sum(d.Denied) != r.Denied || sum(d.Limits[0].Grid.Requests) != r.Requests {
		t.Errorf("the page draws %d requests, %d denied and %d of the limit; want %d, %d and %d", sum(d.Requests), sum(d.Denied), sum(d.Limits[0].Grid.Requests), r.Requests, r.Denied, r.Requests)
	}
	above := int64(0)
	for i := len(points) - 1; i >= 0; i-- {
		p := points[i]
		then, _, _ := htmlOf(t, perAddress(p.Limit), "remote_address=%h", log)
		if a := then.advised()[0]; a.Denied != p.Clients || then.Denied != p.Requests || sum(p.Denied) != p.Requests || above != p.Clients {
			t.Errorf("%s denies %d requests of %d clients; the page states %d requests (%d in the timeline) of %d clients (%d need more)",
				p.Limit, then.Denied, a.Denied, p.Requests, sum(p.Denied), p.Clients, above)
		}
		above += p.Need
	}
	if above != r.advised()[0].Clients {
		t.Errorf("the bars add up to %d clients, want %d", above, r.advised()[0].Clients)
	}
}

func TestPageIsBounded(t *testing.T) {
	var yaml, log strings.Builder
	yaml.WriteString("domain: edge\ndescriptors:\n")
	for i := range 30 {
		fmt.Fprintf(&yaml, "  - {key: path, value: /%d, descriptors: [{key: user, rate_limit: {algorithm: token_bucket, rate: 1, period: 1s}}]}\n", i)
	}
	for i := range 30_000 {
		fmt.Fprintf(&log, `192.0.2.1 - user-%d [01/Jan/2026:%02d:%02d:%02d +0000] "GET /%d HTTP/1.1" 200 1`+"\n", i%997, i/3600, i/60%60, i%60, i%30)
	}
	r, page, d := htmlOf(t, yaml.String(), "path=%U,user=%u", log.String())
	if len(d.Limits) != maxDrawn || len(r.advised()) != maxAdvised || len(d.Requests) > maxBins {
		t.Errorf("the page has %d limits of %d and %d bins; want %d, %d and at most %d", len(d.Limits), len(r.advised()), len(d.Requests), maxDrawn, maxAdvised, maxBins)
	}
	if !strings.Contains(page, "20 other limits matched fewer requests") {
		t.Error("the page lacks the number of limits that are left out")
	}
	if len(page) > 300_000 {
		t.Errorf("the page has %d bytes, want at most 300,000", len(page))
	}
}

func TestPageEscapesHostileKeys(t *testing.T) {
	log := ""
	for _, path := range []string{`/</script><script>alert(1)</script>`, `/<img/src=x/onerror=alert(1)>`, `/\x22><svg/onload=alert(1)>`, `/\xE2\x80\xA8{{.Name}}`} {
		log += `192.0.2.1 - - [01/Jan/2026:00:00:00 +0000] "GET ` + path + ` HTTP/1.1" 200 1` + "\n"
	}
	_, page, d := htmlOf(t, "{domain: edge, descriptors: [{key: path, rate_limit: {algorithm: sliding_log, rate: 1, period: 1m}}]}", "path=%U", log)
	if d.Limits[0].Clients != 4 {
		t.Errorf("%d clients, want 4", d.Limits[0].Clients)
	}
	if n := strings.Count(page, "<script"); n != 2 {
		t.Errorf("%d scripts, want the data and the one of the page", n)
	}
	for _, no := range []string{"<img", "<svg", "\u2028", "http://", "https://"} {
		if body := strings.ReplaceAll(page, "http://www.w3.org/2000/svg", ""); strings.Contains(body, no) {
			t.Errorf("the page has %q; want it escaped or absent", no)
		}
	}
	if !strings.Contains(page, "&lt;img/src=x/onerror=alert(1)&gt;") {
		t.Error("the page lacks a key as escaped text")
	}
}

func TestThePageShowsPeaksInFlight(t *testing.T) {
	bob, ann := flown{"bob", 1, 8}, flown{"<ann>", 2, 3}
	_, page, _ := htmlOf(t, "domain: edge\nlimits: {flights: {algorithm: concurrency, capacity: 1, ttl: 7s}}\ndescriptors: [{key: user, limit: flights}]\n",
		"user=%u", ann.nginx()+"\n"+bob.nginx()+"\n"+bob.nginx()+"\n")
	for _, want := range []string{
		"It would have denied 1 of 3 requests", "<code>bob</code></th><td>2</td><td>1970-01-01T00:00:01Z</td>",
		"<code>&lt;ann&gt;</code></th><td>1</td><td>1970-01-01T00:00:02Z</td>", "2 requests lasted longer than the ttl",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in the page", want)
		}
	}
}
