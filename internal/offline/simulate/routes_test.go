package simulate

import (
	"fmt"
	"strings"
	"testing"
)

// With routes, the lines are decided as /v1/auth decides the requests. The default of auth decides about a request that
// no route matches, unless its domain requires an entry.
func TestRoutesDecideAboutALog(t *testing.T) {
	const config = `
domain: edge
%s
descriptors:
  - {key: client, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: agent, rate_limit: {unit: day, requests_per_unit: 1}}
auth:
  default: %s
  routes:
    - {match: {path: /page}, descriptors: [[{key: client, from: client_ip}]]}
    - {match: {path: /agent}, descriptors: [[{key: agent, from: "header:User-Agent"}], [{key: client, from: "header:X-User"}]]}
    - {match: {path: /user}, descriptors: [[{key: agent, from: "header:X-User"}]]}
`
	mapped := strings.Replace(nginxLine(3, "GET /page HTTP/1.1", ""), "192.0.2.1", "::ffff:192.0.2.1", 1) // the same client
	log := nginxLine(1, "GET /page HTTP/1.1", "") + nginxLine(2, "GET /page?x=1 HTTP/1.1", "") + mapped +
		nginxLine(4, "GET /other HTTP/1.1", "") + nginxLine(5, "GET /user HTTP/1.1", "") + nginxLine(6, "GET /agent HTTP/1.1", ` "-" "curl"`) +
		nginxLine(7, "GET /agent HTTP/1.1", ` "-" "curl"`) + nginxLine(8, "GET /agent HTTP/1.1", "") + nginxLine(9, "GET /agent# HTTP/1.1", ` "-" "new"`)
	for _, test := range []struct{ require, standard, want string }{
		{"", "deny", "ok ok denied denied denied ok denied denied denied"},
		{"", "allow", "ok ok denied ok ok ok denied ok denied"},
		{"require: [client]", "allow", "ok ok denied denied denied denied denied denied denied"},
	} {
		s := compiled(t, fmt.Sprintf(config, test.require, test.standard))
		text, decisions := reportOn(t, Config{Snapshot: s, Format: Nginx, Templates: RouteTemplates(Nginx, s.Auth), Domain: "edge"}, log)
		var got []string
		for line := range strings.Lines(decisions) {
			got = append(got, map[bool]string{true: "ok", false: "denied"}[strings.HasPrefix(line, `{"ok":true`)])
		}
		if strings.Join(got, " ") != test.want || !strings.Contains(text, "left out  5 descriptors") {
			t.Errorf("%s, default %s: got %s, want %s\n%s", test.require, test.standard, got, test.want, text)
		}
	}
}
