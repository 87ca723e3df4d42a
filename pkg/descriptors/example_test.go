package descriptors_test

import (
	"fmt"

	"github.com/rlsidecar/rlsidecar/pkg/algorithms"
	"github.com/rlsidecar/rlsidecar/pkg/descriptors"
)

// A limit of login attempts, for each address. Other paths have no limit.
func Example() {
	type limit struct {
		descriptors.Keys
		perMinute int
	}
	var tree descriptors.Tree[*limit]
	login, _ := tree.Add(nil, descriptors.ValuePattern("path", "/login"))
	address, _ := tree.Add(login, descriptors.ValuePattern("address", ""))
	address.Found = &limit{perMinute: 5, Keys: descriptors.Keys{
		Prefix: descriptors.Prefix("edge", "path", "path=/login,address", algorithms.FixedWindow),
		Open:   []int{1}, // the address, the second entry, identifies the bucket
	}}

	request := []descriptors.Entry{{Key: "path", Value: "/login"}, {Key: "address", Value: "192.0.2.7"}}
	if node := tree.Match(request); node != nil && node.Found != nil {
		key, _ := node.Found.Append(nil, request, false)
		fmt.Println(node.Found.perMinute, "a minute:", descriptors.KeyText(key))
	}
	other := []descriptors.Entry{{Key: "path", Value: "/"}}
	found := func(n *descriptors.Node[*limit]) bool { return n.Found != nil }
	fmt.Println(tree.Match(other) != nil, tree.Explain(other, found).Miss)
	// Output:
	// 5 a minute: limit path=/login,address of domain edge (path), key 192.0.2.7
	// false value "/" of path: matches no value at this level; the values are /login
}

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
