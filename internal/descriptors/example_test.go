package descriptors_test

import (
	"fmt"

	"github.com/rlsidecar/rlsidecar/internal/descriptors"
	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
)

// The command line reads and prints descriptors in the form key=value[,key=value]….
func ExampleParse() {
	entries, err := descriptors.Parse(`user=bob,path=/a\,b`)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, e := range entries {
		fmt.Println(e.Key, e.Value)
	}
	fmt.Println(descriptors.Format(entries))
	// Output:
	// user bob
	// path /a,b
	// user=bob,path=/a\,b
}

// A wrapper of a Store gets keys as bytes.
func ExampleKeyText() {
	keys := descriptors.Keys{Prefix: descriptors.Prefix("mail", "limit", "send", algorithms.TokenBucket)}
	key, _ := keys.AppendOf(nil, []string{"bob", "\xff"}, false)
	fmt.Println(descriptors.KeyText(key))
	// Output: limit send of domain mail, key bob,\xff
}
