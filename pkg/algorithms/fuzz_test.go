package algorithms

import (
	"math/rand/v2"
	"testing"
)

// The input replaces the random numbers of dice: two bytes for each number. After the last byte, numbers are
// random.
func FuzzModel(f *testing.F) {
	for _, k := range kinds {
		f.Add(uint8(k.kind), []byte("what the dice show"))
	}
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		chance := rand.New(rand.NewPCG(uint64(len(data)), 0))
		roll := dice(func(n int64) int64 {
			if len(data) < 2 {
				return chance.Int64N(n)
			}
			value := int64(data[0])<<8 | int64(data[1])
			if data = data[2:]; n > 1<<16 { // two bytes are not enough for larger n
				value |= chance.Int64N(n) &^ 0xffff
			}
			return value % n
		})
		k := kinds[int(kind)%len(kinds)]
		s, l := roll.limit(k.kind)
		model := referenceOf(s)
		roll.walk(200, []*Limit{l}, func(m moment) {
			if want := model.decide(m.now, m.charge); m.got != want {
				t.Fatalf("%s, at %d %+v of %+v:\n got %+v\nwant %+v", show(s), m.now, m.charge, m.before, m.got, want)
			}
		})
	})
}
