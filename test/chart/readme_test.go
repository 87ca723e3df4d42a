package chart

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const begin, end = "<!-- values: generated from the comments in values.yaml -->\n", "<!-- end of values -->\n"

// TestReadmeListsTheValues compares the table of values in the chart's README with values.yaml. UPDATE=1 writes the
// table again.
func TestReadmeListsTheValues(t *testing.T) {
	data, err := os.ReadFile(ours + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| value | default | meaning |\n|---|---|---|\n")
	rows(t, &table, "", document.Content[0])

	readme, err := os.ReadFile(ours + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(readme), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("README.md lacks the lines %q and %q, between which the table of values belongs", begin, end)
	}
	if old == table.String() {
		return
	}
	if os.Getenv("UPDATE") == "" {
		t.Fatal("the table of values in README.md differs from values.yaml; UPDATE=1 go test -run Readme writes it again")
	}
	if err := os.WriteFile(ours+"/README.md", []byte(before+begin+table.String()+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// rows writes a line for each value below n. For a mapping in block style, or one without a comment, it writes the lines
// of the values in the mapping instead. The mapping resources has a line of its own.
func rows(t *testing.T, table *strings.Builder, path string, n *yaml.Node) {
	t.Helper()
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name, comment := path+key.Value, key.HeadComment
		if path == "" { // A comment before a blank line describes the file, not the first value.
			parts := strings.Split(comment, "\n\n")
			comment = parts[len(parts)-1]
		}
		comment = strings.TrimPrefix(comment, "# ")
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 && (comment == "" || value.Style&yaml.FlowStyle == 0 && name != "resources") {
			rows(t, table, name+".", value)
			continue
		}
		var shown any
		if err := value.Decode(&shown); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(shown)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(table, "| `%s` | `%s` | %s |\n", name, text, comment)
	}
}
