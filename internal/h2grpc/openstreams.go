package h2grpc

import "math/rand/v2"

// openStreams has the streams of a connection, by their numbers. A map would take a twentieth of the processor time of a
// request that waits for a Store.
type openStreams struct {
	slots  []*stream // by slot; those of one slot are linked by stream.next. The length is 0 or a power of two.
	shift  int       // 32 minus the logarithm of that length
	factor uint32    // random and odd, so that no client can choose numbers that share a slot
	count  int
}

func newOpenStreams() openStreams { return openStreams{factor: rand.Uint32() | 1} }

func (o *openStreams) slot(id uint32) **stream { return &o.slots[id*o.factor>>o.shift] }

func (o *openStreams) find(id uint32) *stream {
	if o.count == 0 {
		return nil
	}
	s := *o.slot(id)
	for s != nil && s.id != id {
		s = s.next
	}
	return s
}

func (o *openStreams) add(s *stream) {
	if o.count == len(o.slots) {
		o.resize()
	}
	at := o.slot(s.id)
	s.next, s.open, *at = *at, true, s
	o.count++
}

func (o *openStreams) remove(s *stream) {
	at := o.slot(s.id)
	for *at != s {
		at = &(*at).next
	}
	*at, s.next, s.open = s.next, nil, false
	o.count--
}

// resize makes room for about twice the streams that are open.
func (o *openStreams) resize() {
	list := o.all()
	size := 32
	for o.shift = 27; size <= 2*len(list); o.shift-- {
		size *= 2
	}
	o.slots, o.count = make([]*stream, size), 0
	for _, s := range list {
		o.add(s)
	}
}

// shrink releases memory that many more streams have needed than are open now.
func (o *openStreams) shrink() {
	if len(o.slots) > fewStreams && o.count <= len(o.slots)/16 {
		o.resize()
	}
}

// all returns the streams in no order. The caller may remove streams while it visits them.
func (o *openStreams) all() []*stream {
	list := make([]*stream, 0, o.count)
	for _, s := range o.slots {
		for ; s != nil; s = s.next {
			list = append(list, s)
		}
	}
	return list
}
