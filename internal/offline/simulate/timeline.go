package simulate

import "github.com/rlsidecar/rlsidecar/pkg/algorithms"

const maxBins = 120

// timeline counts requests and denials over a time whose end is not known. When it is full, neighboring bins are merged
// in pairs, so that each bin is twice as wide.
type timeline struct {
	from, width      algorithms.Micros
	requests, denied []int64
}

// Times must not go back.
func (l *timeline) add(at algorithms.Micros, denied bool) {
	if l.width == 0 {
		l.from, l.width = at, algorithms.Second
	}
	for (at-l.from)/l.width >= maxBins {
		l.requests, l.denied, l.width = halved(l.requests), halved(l.denied), 2*l.width
	}
	i := int((at - l.from) / l.width)
	for len(l.requests) <= i {
		l.requests, l.denied = append(l.requests, 0), append(l.denied, 0)
	}
	if l.requests[i]++; denied {
		l.denied[i]++
	}
}

func halved(counts []int64) []int64 {
	for i := range counts {
		if i%2 == 0 {
			counts[i/2] = counts[i]
		} else {
			counts[i/2] += counts[i]
		}
	}
	return counts[:(len(counts)+1)/2]
}
