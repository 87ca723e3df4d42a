package config

import (
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
)

// The golden files have the slots of descriptors.
func TestHashTagKeepsARequestsBucketsInOneSlot(t *testing.T) {
	const other = "domain: shop\nhash_tag: domain\nlimits: {byName: {rate: 1, period: 1m, algorithm: token_bucket}, used: {rate: 1, period: 1m, algorithm: token_bucket}}\n" +
		"descriptors: [{key: user, limit: used}]\n"
	for name, p := range good(t, Options{}, other).Domains["shop"].Named {
		if p.SlotOfKey([]string{"x"}) != limiter.SlotNumber("shop") {
			t.Errorf("limit %s: slot %d, want %d, that of the domain", name, p.SlotOfKey([]string{"x"}), limiter.SlotNumber("shop"))
		}
	}
	for tag, want := range map[string]uint64{"domain": limiter.SlotNumber("shop"), "entry:user": 0} {
		d := good(t, Options{}, strings.Replace(other, "hash_tag: domain", "hash_tag: "+tag, 1)).Domains["shop"]
		p, err := Inline(d, "own", []byte(`{"algorithm":"token_bucket","rate":1,"period":"1m"}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := p.SlotOfKey([]string{"x"}); got != want {
			t.Errorf("hash_tag %s: a limit that comes with a request has the slot %d, want %d", tag, got, want)
		}
	}
}

// A Redis Cluster charges a group of limits in several steps if they can be in different slots. There must be no warning
// about limits that deny nothing, are charged one by one, or have one slot because of hash_tag.
func TestWarningsAboutSlots(t *testing.T) {
	const plain = "{unit: day, requests_per_unit: 1}"
	for name, test := range map[string]struct {
		second, settings string
		warned           bool
	}{
		"two limits":   {"{unit: hour, requests_per_unit: 1}", "", true},
		"shadow mode":  {"{unit: hour, requests_per_unit: 1, shadow_mode: true}", "", false},
		"quota mode":   {"{unit: hour, requests_per_unit: 1, quota_mode: true}", "", false},
		"unlimited":    {"{unlimited: true}", "", false},
		"one by one":   {"{unit: hour, requests_per_unit: 1}", "consume: each\n", false},
		"one slot":     {"{unit: hour, requests_per_unit: 1}", "hash_tag: domain\n", false},
		"slot of k":    {"{unit: hour, requests_per_unit: 1}", "hash_tag: entry:k\n", false},
		"slot of none": {"{unit: hour, requests_per_unit: 1}", "hash_tag: entry:other\n", true},
	} {
		_, problems := Compile(numbered([]string{"domain: d\n" + test.settings + "descriptors: [{key: k, rate_limit: [" + plain + ", " + test.second + "]}]\n"}), Options{Cluster: true})
		if got := strings.Contains(problems.Error(), "in several steps"); got != test.warned || problems.Bad() {
			t.Errorf("%s: warned: %v, want %v; the problems are %s", name, got, test.warned, problems.Error())
		}
	}
	if text := bad(t, Options{}, "domain: d\nhash_tag: 'entry:'\n"); !strings.Contains(text, "hash_tag must be") {
		t.Errorf("an entry without a key: got %s; want a mistake", text)
	}
}
