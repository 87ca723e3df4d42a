package docgen_test

import (
	"encoding/xml"
	"os"
	"testing"

	"github.com/rlsidecar/rlsidecar/test/docgen"
)

func TestConfigReference(t *testing.T) {
	check(t, "config", "../../internal/config/schema.json", docgen.Config)
}

func TestHTTPReference(t *testing.T) {
	check(t, "http", "../../internal/httpapi/openapi.json", docgen.HTTP)
	check(t, "operators-api", "../../internal/httpapi/openapi-operators.json", docgen.Operators)
}

func check(t *testing.T, name, source string, of func([]byte) (string, error)) {
	t.Helper()
	data, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	text, err := of(data)
	if err != nil {
		t.Fatal(err)
	}
	docgen.Check(t, "../..", "reference/"+name+".md", text)
}

func TestPictures(t *testing.T) {
	files, err := docgen.Pictures()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := xml.Unmarshal([]byte(text), new(any)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		docgen.Check(t, "../..", "pictures/"+name, text)
	}
}
