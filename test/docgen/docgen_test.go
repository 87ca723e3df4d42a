package docgen_test

import (
	"encoding/xml"
	"os"
	"testing"

	"github.com/rlsidecar/rlsidecar/test/docgen"
)

func TestConfigReference(t *testing.T) {
	holds(t, "config", "../../internal/config/schema.json", docgen.Config)
}

func TestHTTPReference(t *testing.T) {
	holds(t, "http", "../../internal/httpapi/openapi.json", docgen.HTTP)
	holds(t, "operators-api", "../../internal/httpapi/openapi-operators.json", docgen.Operators)
}

func holds(t *testing.T, name, source string, of func([]byte) (string, error)) {
	t.Helper()
	data, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	text, err := of(data)
	if err != nil {
		t.Fatal(err)
	}
	docgen.Hold(t, "../..", "reference/"+name+".md", text)
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
		docgen.Hold(t, "../..", "pictures/"+name, text)
	}
}
