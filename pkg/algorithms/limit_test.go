package algorithms

import (
	"errors"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// If the capacity or max_reserved is too large, the error contains the largest number that compiles.
func TestCompiledNumbersAreExact(t *testing.T) {
	named := regexp.MustCompile(`the largest that fits is (\d+)$`)
	refused := 0
	rapid.Check(t, func(t *rapid.T) {
		roll := newDice(t)
		for range length(t, 300) {
			s := roll.spec(kinds[roll(int64(len(kinds)))].kind)
			if roll.once(2) && s.Capacity != nil {
				s.Capacity = new(roll.of(1e9, 1e12, 1e15, 1<<53, roll.between(0, 1<<53)))
			}
			l, err := Compile(s)
			if err == nil {
				inRange(t, s, l)
				continue
			}
			refused++
			var errs SpecErrors
			if !errors.As(err, &errs) {
				t.Fatalf("%s: %v", show(s), err)
			}
			field, largest := errs[0].Field, named.FindStringSubmatch(err.Error())
			if largest == nil {
				continue
			}
			n, _ := strconv.ParseInt(largest[1], 10, 64)
			set := map[string]func(int64){
				"capacity":     func(n int64) { s.Capacity, s.Initial = &n, nil },
				"max_reserved": func(n int64) { s.MaxReserved = &n },
				"rate":         func(n int64) { s.Rate = n },
				"guaranteed":   func(n int64) { s.Minimum = &Rate{n, s.Minimum.Period} },
			}[field]
			if set == nil {
				t.Fatalf("%s: %v", show(s), err)
			}
			if field == "rate" || field == "guaranteed" {
				continue // the rate determines the scale, so one more than its largest value may fit again
			}
			set(n)
			if _, err := Compile(s); err != nil {
				t.Fatalf("%s, the largest %s named: %v", show(s), field, err)
			}
			set(n + 1)
			if _, err := Compile(s); err == nil {
				t.Fatalf("%s compiles, but the error says that the largest %s is one less", show(s), field)
			}
		}
	})
	t.Logf("%d refused", refused)
}

func inRange(t *rapid.T, s Spec, l Limit) {
	if l.tick != tickOf(s) {
		t.Fatalf("%s: tick %d, want %d", show(s), l.tick, tickOf(s))
	}
	b, sum := func(n int64) *big.Int { return big.NewInt(n) }, new(big.Int)
	all := l.Capacity + l.MaxReserved
	switch l.Kind {
	case TokenBucket, LeakyBucket:
		sum.Mul(b(all), b(l.q)).Add(sum, b(l.p))
	case Guaranteed:
		sum.Add(b(l.v), b(l.v1)).Add(sum, b(l.p+l.p1))
	case FixedWindow: // at MaxTime, with the largest phase
		sum.Mul(b(ceilDiv(all, l.Rate)+1), b(l.period)).Add(sum, b(int64(MaxTime/l.tick)))
	case SlidingWindow:
		sum.Mul(b(3*l.Rate), b(l.period))
	case SlidingLog:
	}
	if sum.Cmp(exact) > 0 {
		t.Fatalf("%s: %v is more than 2^53", show(s), sum)
	}
}

func TestInvalidSpecsAreRefused(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	ok := Spec{Kind: TokenBucket, Rate: 10, Period: sec}
	for name, c := range map[string]struct {
		edit func(*Spec)
		want []string // the fields with mistakes, some with a part of the problem
	}{
		"nothing":                       {func(s *Spec) { *s = Spec{} }, []string{"algorithm", "period"}},
		"negative rate":                 {func(s *Spec) { s.Rate = -5 }, []string{"rate"}},
		"no period":                     {func(s *Spec) { s.Period = 0 }, []string{"period"}},
		"negative capacity":             {func(s *Spec) { s.Capacity = n(-1) }, []string{"capacity"}},
		"initial over capacity":         {func(s *Spec) { s.Initial = n(11) }, []string{"initial"}},
		"negative initial":              {func(s *Spec) { s.Initial = n(-1) }, []string{"initial"}},
		"negative max_reserved":         {func(s *Spec) { s.MaxReserved = n(-1) }, []string{"max_reserved"}},
		"beyond 2^53":                   {func(s *Spec) { s.Rate, s.Capacity = 1<<53+1, n(1<<53+1) }, []string{"rate", "capacity"}},
		"start of a bucket":             {func(s *Spec) { s.Start = new(t0) }, []string{"start"}},
		"capacity of a counter":         {func(s *Spec) { s.Kind, s.Capacity = SlidingWindow, n(5) }, []string{"capacity"}},
		"initial of a log":              {func(s *Spec) { s.Kind, s.Initial = SlidingLog, n(5) }, []string{"initial"}},
		"initial of a queue":            {func(s *Spec) { s.Kind, s.Initial = LeakyBucket, n(5) }, []string{"initial"}},
		"reserving in a queue":          {func(s *Spec) { s.Kind, s.MaxReserved = LeakyBucket, n(5) }, []string{"max_reserved"}},
		"overdrawn log":                 {func(s *Spec) { s.Kind, s.Overdraw = SlidingLog, true }, []string{"overdraw"}},
		"log of too many":               {func(s *Spec) { s.Kind, s.Rate = SlidingLog, 10_001 }, []string{"rate … at most 10000"}},
		"guaranteed window":             {func(s *Spec) { s.Kind, s.Minimum = FixedWindow, &Rate{1, sec} }, []string{"guaranteed"}},
		"guaranteed nothing":            {func(s *Spec) { s.Minimum = &Rate{0, sec} }, []string{"guaranteed"}},
		"guaranteed in no time":         {func(s *Spec) { s.Minimum = &Rate{1, 0} }, []string{"guaranteed"}},
		"reserving a guaranteed":        {func(s *Spec) { s.Minimum, s.MaxReserved = &Rate{1, sec}, n(1) }, []string{"max_reserved"}},
		"a huge max_reserved":           {func(s *Spec) { s.Rate, s.Period, s.Capacity, s.MaxReserved = 1, 30*Day, n(1), n(1<<50) }, []string{"max_reserved"}},
		"a capacity above a reserve":    {func(s *Spec) { s.Rate, s.Period, s.Capacity, s.MaxReserved = 7, Day, n(104_248_992), n(1000) }, []string{"capacity … fits is 104248991"}},
		"a bucket takes denied":         {func(s *Spec) { s.TakesDenied = true }, []string{"algorithm … count denied requests"}},
		"a counter takes denied":        {func(s *Spec) { s.Kind, s.TakesDenied = SlidingWindow, true }, []string{"algorithm … count denied requests"}},
		"a log takes denied":            {func(s *Spec) { s.Kind, s.TakesDenied = SlidingLog, true }, []string{"algorithm … count denied requests"}},
		"a queue takes denied":          {func(s *Spec) { s.Kind, s.TakesDenied = LeakyBucket, true }, []string{"algorithm … count denied requests"}},
		"a penalty after 0":             {func(s *Spec) { s.Penalty = &Penalty{0, sec, sec} }, []string{"penalty"}},
		"a penalty after too many":      {func(s *Spec) { s.Penalty = &Penalty{MaxPenaltyAfter + 1, sec, sec} }, []string{"penalty"}},
		"a penalty of no time":          {func(s *Spec) { s.Penalty = &Penalty{1, 0, sec} }, []string{"penalty"}},
		"a penalty above its longest":   {func(s *Spec) { s.Penalty = &Penalty{1, sec, sec - us} }, []string{"penalty"}},
		"a penalty too long":            {func(s *Spec) { s.Penalty = &Penalty{1, sec, MaxBlock + us} }, []string{"penalty"}},
		"a penalty and overdraw":        {func(s *Spec) { s.Penalty, s.Overdraw = &Penalty{1, sec, sec}, true }, []string{"penalty"}},
		"guaranteed as an algorithm":    {func(s *Spec) { s.Kind = Guaranteed }, []string{"algorithm … must not be guaranteed"}},
		"an unknown algorithm":          {func(s *Spec) { s.Kind = Concurrency + 1 }, []string{"algorithm … is missing"}},
		"a calendar of a bucket":        {func(s *Spec) { s.Calendar = calendars[0] }, []string{"time_zone … belongs to algorithm fixed_window"}},
		"a calendar and a start":        {func(s *Spec) { s.Kind, s.Calendar, s.Start = FixedWindow, calendars[0], new(t0) }, []string{"start … cannot be combined with time_zone"}},
		"a debt without settlements":    {func(s *Spec) { s.MaxDebt = n(1) }, []string{"max_debt … belongs to limits that settle"}},
		"a settling counter":            {func(s *Spec) { s.Kind, s.Settles = SlidingWindow, true }, []string{"settle … does not belong to algorithm sliding_window"}},
		"a settling guaranteed minimum": {func(s *Spec) { s.Settles, s.Minimum = true, &Rate{1, sec} }, []string{"settle … does not belong to a token bucket with a guaranteed minimum"}},
		"a settling rollover":           {func(s *Spec) { s.Kind, s.Settles, s.Capacity = FixedWindow, true, n(11) }, []string{"settle … rolls over"}},
		"a settling overdraft":          {func(s *Spec) { s.Settles, s.Overdraw = true, true }, []string{"settle … cannot be combined with overdraw"}},
		"a settling count of denials":   {func(s *Spec) { s.Kind, s.Settles, s.TakesDenied = FixedWindow, true, true }, []string{"settle … count denied requests"}},
		"a settling override":           {func(s *Spec) { s.Kind, s.Settles, s.PerRequest = FixedWindow, true, true }, []string{"settle … count denied requests"}},
		"a settling penalty":            {func(s *Spec) { s.Settles, s.Penalty = true, &Penalty{1, sec, sec} }, []string{"settle … cannot be combined with penalty"}},
		"a negative debt":               {func(s *Spec) { s.Settles, s.MaxDebt = true, n(-1) }, []string{"max_debt … must not be negative"}},
		"a counter of huge products":    {func(s *Spec) { s.Kind, s.Rate, s.Period = SlidingWindow, 1<<50, 1<<20 }, []string{"rate … too large to compute exactly"}},
		"a log of more than 142 years":  {func(s *Spec) { s.Kind, s.Period = SlidingLog, MaxTime+1 }, []string{"period … too large to compute exactly"}},
		// In each of the next three rows, a product exceeds 64 bits, and its low bits are 0.
		"a scale beyond all bounds":        {func(s *Spec) { s.Period, s.Minimum = 1<<40-1, &Rate{1, 1 << 40} }, []string{"guaranteed … too large to compute exactly"}},
		"a guaranteed rate beyond bounds":  {func(s *Spec) { s.Rate, s.Capacity, s.Period, s.Minimum = 1, n(1), 1<<24, &Rate{1 << 40, 3} }, []string{"guaranteed … too large to compute exactly"}},
		"a rate of the bank beyond bounds": {func(s *Spec) { s.Rate, s.Capacity, s.Period, s.Minimum = 1<<40, n(10), 3, &Rate{1, 1 << 24} }, []string{"guaranteed … too large to compute exactly"}},
		"everything at once": {
			func(s *Spec) {
				*s = Spec{Kind: SlidingLog, Rate: -1, Period: -1, Capacity: n(-1), Initial: n(-1), MaxReserved: n(-1), Start: new(t0), Overdraw: true, Minimum: &Rate{}}
			},
			[]string{"rate", "period", "capacity", "capacity", "initial", "max_reserved", "start", "overdraw", "guaranteed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := ok
			c.edit(&s)
			_, err := Compile(s)
			var errs SpecErrors
			if !errors.As(err, &errs) {
				t.Fatalf("error %v; want a SpecErrors", err)
			}
			if len(errs) != len(c.want) {
				t.Fatalf("got %v; want %d mistakes", err, len(c.want))
			}
			for i, want := range c.want {
				if field, problem, _ := strings.Cut(want, " … "); errs[i].Field != field || !strings.Contains(errs[i].Problem, problem) {
					t.Errorf("mistake %d is %v; want %s", i, errs[i], want)
				}
			}
		})
	}
}

func TestNumbersAtTheirBoundsCompile(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	for name, s := range map[string]Spec{
		"the largest rate":        {Kind: TokenBucket, Rate: maxExact, Period: maxExact, Capacity: n(1)},
		"the longest log":         {Kind: SlidingLog, Rate: 1, Period: MaxTime},
		"the largest log":         {Kind: SlidingLog, Rate: 10_000, Period: hour},
		"the longest window":      {Kind: FixedWindow, Rate: 1, Period: MaxTime, Capacity: n(0)},
		"settled without debt":    {Kind: TokenBucket, Rate: 1, Period: sec, Settles: true, MaxDebt: n(0)},
		"settled without surplus": {Kind: FixedWindow, Rate: 9, Period: sec, Capacity: n(9), Settles: true},
		"the shortest penalty":    penalized(1, us, us),
		"the latest penalty":      penalized(MaxPenaltyAfter, sec, MaxBlock),
		"the longest penalty":     penalized(1, MaxBlock, MaxBlock),
	} {
		if _, err := Compile(s); err != nil {
			t.Errorf("%s: got %v; want no error", name, err)
		}
	}
}

func TestAnUnknownAlgorithmDenies(t *testing.T) {
	l := mustCompile(t, oneASecond(5))
	l.Kind = 77
	if s, d := l.Take(State{}, t0, Charge{Cost: 1}); d.Allowed || !d.Never || s.By != nil {
		t.Errorf("got %+v, %+v; want a denial for good that stores nothing", s, d)
	}
}
