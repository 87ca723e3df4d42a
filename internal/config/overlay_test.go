package config

import (
	"strings"
	"testing"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const overlay = `
domain: edge
consume: together
descriptors:
  - key: route
    value: chat
    descriptors:
      - {key: user, rate_limit: {settle: {by: bucket, estimate: 3, ttl: 10m}}}
`

// sent are the limits of a control plane for overlay.
func sent(limit *MessageLimit) []Message {
	return []Message{{Name: "edge", Domain: "edge", Descriptors: []MessageDescriptor{
		{Key: "route", Value: "other", Descriptors: []MessageDescriptor{{Key: "user", Limit: perMinute(7)}}},
		{Key: "route", Value: "chat", Limit: perMinute(9), Descriptors: []MessageDescriptor{{Key: "user", Limit: limit}}},
	}}}
}

func TestAnOverlayMakesALimitOfAControlPlaneSettle(t *testing.T) {
	s, problems := CompileMessages(sent(perMinute(5)), Options{ConsumeEach: true, Overlay: &File{"o.yaml", []byte(overlay)}})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if without, _ := CompileMessages(sent(perMinute(5)), Options{ConsumeEach: true}); without.Hash == s.Hash {
		t.Error("the hash of the configuration does not depend on the overlay")
	}
	for _, p := range s.Policies {
		settle := p.Extra().Settle
		if p.Limit.Rate != 5 {
			if settle != nil {
				t.Errorf("the limit of %d settles", p.Limit.Rate)
			}
			continue
		}
		if settle == nil || !settle.ByBucket || settle.Estimate != 3 {
			t.Errorf("settle is %+v, want the overlay's", settle)
		}
		// Its windows are those that the control plane describes: they start at whole minutes.
		if l := p.Limit; l.Kind != algorithms.FixedWindow || l.Period() != 60*algorithms.Second || l.Spec().Start == nil || *l.Spec().Start != 0 {
			t.Errorf("the limit is %+v", l.Spec())
		}
	}
}

func TestAnOverlayThatDoesNotFit(t *testing.T) {
	for _, row := range []struct{ overlay, want string }{
		{overlay + "auth: {routes: []}\n", "mistake o.yaml:2:1: an overlay states only domain, consume, and descriptors"},
		{strings.Replace(overlay, "value: chat", "limit: chat", 1), "mistake o.yaml:5:5: an overlay states only"},
		{strings.Replace(overlay, "settle:", "rate: 3, settle:", 1), "mistake o.yaml:8:33: an overlay states only"},
		{strings.Replace(overlay, "chat", "chats", 1), "warning o.yaml:5:5: the control plane has sent no such descriptor"},
		{strings.Replace(overlay, "edge", "edges", 1), "warning o.yaml:5:5: the control plane has sent no such descriptor"},
		{strings.Replace(overlay, "consume: together", "", 1), "mistake o.yaml:8:42: settle cannot be combined with consume: each"},
		{strings.Replace(overlay, "estimate: 3", "estimate: 30", 1), "mistake o.yaml:8:65: estimate must be between 1 and the capacity, 5"},
		{strings.Replace(overlay, "domain: edge", "domain edge", 1), "mistake o.yaml:"},
	} {
		_, problems := CompileMessages(sent(perMinute(5)), Options{ConsumeEach: true, Overlay: &File{"o.yaml", []byte(row.overlay)}})
		if len(problems) == 0 {
			t.Errorf("no problem, want %s", row.want)
			continue
		}
		kind := "mistake "
		if problems[0].Warning {
			kind = "warning "
		}
		if got := kind + strings.Replace(problems[0].String(), "warning: ", "", 1); !strings.HasPrefix(got, row.want) {
			t.Errorf("%s\nwant %s", got, row.want)
		}
	}
	for _, limit := range []*MessageLimit{nil, {Unlimited: true}, perMinute(0)} {
		s, problems := CompileMessages(sent(limit), Options{ConsumeEach: true, Overlay: &File{"o.yaml", []byte(overlay)}})
		if s == nil || len(problems) == 0 {
			t.Errorf("a limit %+v: %v, want only warnings", limit, problems)
		}
	}
}
