package admin

import (
	"reflect"
	"testing"

	"github.com/rlsidecar/rlsidecar/internal/limiter"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// alike must notice a change of any field except Index and Place.
func TestAChangeOfAnyFieldIsNoticed(t *testing.T) {
	a := &limiter.Policy{Limit: &algorithms.Limit{}}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[limiter.Policy]()) {
		if f.Anonymous {
			continue
		}
		b := *a
		b.Limit = &algorithms.Limit{} // equal numbers, another pointer
		name := f.Name
		switch field := reflect.ValueOf(&b).Elem().FieldByIndex(f.Index); name {
		case "Limit":
			b.Limit.Rate = 1
		case "Adjusted":
			b.Adjusted = &limiter.PolicyAdjustment{}
		case "Extras":
			b.Extras = &limiter.Extras{Named: true}
		case "Open":
			b.Open = []int{0}
		case "Place":
			continue
		default:
			switch field.Kind() {
			case reflect.String:
				field.SetString("x")
			case reflect.Bool:
				field.SetBool(true)
			case reflect.Int:
				field.SetInt(1)
			default:
				field.SetUint(1)
			}
		}
		if got := alike(a, &b); got != (name == "Index") {
			t.Errorf("another %s: alike is %t; want %v", name, got, name == "Index")
		}
	}
}
