package config

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

const overlayForm = "an overlay states only domain, consume, and descriptors with key, value, descriptors and rate_limit: {settle: …}"

// overlay adds to the limits of a control plane what the file f states, because its protocol has no settle. f has the form
// of a configuration (overlayForm). A limit that settles has the form with an algorithm: its windows start at the same
// times as those that the control plane describes.
func (s *source) overlay(f *File, o *Options) {
	if f == nil {
		return
	}
	s.hash = hash([]File{{Data: []byte(s.hash)}, *f})
	for _, over := range parse(*f, &s.report, newBudget(o)) {
		rest := *over
		rest.Domain, rest.Consume, rest.Descriptors = text{}, consume{}, descriptorList{}
		s.checkOverlay(over.at, rest, document{at: over.at, incomplete: over.incomplete})
		var sent []*descriptor
		for _, doc := range s.docs {
			if doc.Domain.value == over.Domain.value {
				doc.Consume = over.Consume
				sent = append(sent, doc.Descriptors.value...)
			}
		}
		s.overlayDescriptors(over.Descriptors.value, sent)
	}
}

// checkOverlay reports what an overlay must not state. rest is a part of it without what it may state.
func (s *source) checkOverlay(at place, rest, empty any) {
	if !reflect.DeepEqual(rest, empty) {
		s.mistake(at, overlayForm+"; remove the rest")
	}
}

func (s *source) overlayDescriptors(list, sent []*descriptor) {
	for _, over := range list {
		rest := *over
		rest.Key, rest.Value, rest.RateLimit, rest.Descriptors = text{}, text{}, limitList{}, descriptorList{}
		s.checkOverlay(over.at, rest, descriptor{at: over.at, incomplete: over.incomplete})
		i := slices.IndexFunc(sent, func(d *descriptor) bool {
			return d.Key.value == over.Key.value && d.Value.value == over.Value.value
		})
		if i < 0 {
			s.warn(over.at, "the control plane has sent no such descriptor, so this has no effect; the sidecar's list of limits has the keys and values that it sends")
			continue
		}
		for _, l := range over.RateLimit.value {
			s.overlayLimit(l, sent[i])
		}
		s.overlayDescriptors(over.Descriptors.value, sent[i].Descriptors.value)
	}
}

func (s *source) overlayLimit(over *limit, d *descriptor) {
	rest := *over
	rest.Settle = settling{}
	s.checkOverlay(over.at, rest, limit{at: over.at, incomplete: over.incomplete, broken: over.broken})
	for _, l := range d.RateLimit.value {
		period, known := l.window()
		switch {
		case l.Unlimited.value || l.RequestsPerUnit.value == 0:
			s.warn(over.at, "the control plane allows every request here, or none, so settle has no effect")
		case known && over.Settle.ok:
			l.Algorithm.given = given[algorithms.Kind]{l.at, algorithms.FixedWindow, true}
			l.Rate, l.Period.given = l.RequestsPerUnit, given[cycle]{l.Unit.at, cycle{span: period}, true}
			l.Start.given = given[algorithms.Micros]{l.at, 0, true}
			l.Settle = over.Settle
			l.RequestsPerUnit, l.Unit = whole{}, text{}
		}
	}
	if len(d.RateLimit.value) == 0 {
		s.warn(over.at, "the control plane has sent no limit for %s, so this has no effect", fmt.Sprintf("%q", short(d.Key.value)))
	}
}
