package accesslog

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLines(t *testing.T) {
	const id = "BAf-3_x0"
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			l, err := Listen(network + "://127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			got := make(chan string, 100)
			served := make(chan error)
			go func() { served <- l.Serve(func(id string) { got <- id }) }()
			send := func(text string) {
				t.Helper()
				c, err := net.Dial(network, l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if _, err := c.Write([]byte(text)); err != nil {
					t.Fatal(err)
				}
			}
			for _, test := range []struct {
				text string
				want []string
			}{
				{"<190>Nov 24 14:00:00 slots: " + id + "\n", []string{id}}, // NGINX over syslog
				{id + "\n", []string{id}},                                  // HAProxy
				{`{"level":"info","ts":1.5,"slot":"` + id + `"}` + "\n", []string{id}},
				{id + "\r\n" + "x " + id + "2\n", []string{id, id + "2"}},
				{"no id here.\n", []string{""}},
				{"\n", []string{""}},
				{"\x00\xff\xfe\n", []string{""}},
				{id + " \n" + "12 - \n" + id + "\n", []string{id, id}},
				{"-\n" + "<190>Nov 24 14:00:00 slots: -\n" + id + "\n", []string{id}},
				{strings.Repeat("x", maxLine+100) + " " + id + "\n" + id + "\n", map[string][]string{"tcp": {"", id}, "udp": {id, id}}[network]},
			} {
				send(test.text)
				for i, want := range test.want {
					select {
					case id := <-got:
						if id != want {
							t.Errorf("%.60q, line %d: got %q, want %q", test.text, i, id, want)
						}
					case <-time.After(time.Minute):
						t.Fatalf("%.60q, line %d: nothing arrived; want %q", test.text, i, want)
					}
				}
			}
			if network == "tcp" {
				send(id) // a line without an end
			}
			l.Close()
			if err := <-served; err != nil {
				t.Error(err)
			}
			if len(got) > 0 {
				t.Errorf("%q arrived too; want nothing", <-got)
			}
		})
	}
}

// A sender beyond the bound is refused, and the others are still served.
func TestTCPSendersAreBounded(t *testing.T) {
	l, err := Listen("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan string, 100)
	go func() { _ = l.Serve(func(id string) { got <- id }) }()
	var conns []net.Conn
	for i := range maxSenders + 1 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if conns = append(conns, c); i < maxSenders {
			_, _ = c.Write([]byte("id\n"))
			<-got // accepted, so that the last connection is the one beyond the bound
		}
	}
	if n, err := conns[maxSenders].Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes from a connection beyond the bound; want an error", n)
	}
	conns[0].Close()
	for _, c := range conns[1:maxSenders] {
		_, _ = c.Write([]byte("id\n"))
		<-got
	}
}

func TestOnlyLoopbackAddressesAreAccepted(t *testing.T) {
	for address, valid := range map[string]bool{
		"udp://127.0.0.1:5140": true, "tcp://127.0.0.1:5140": true, "udp://[::1]:5140": true, "udp://127.9.9.9:0": true,
		"udp://0.0.0.0:5140": false, "udp://:5140": false, "udp://192.0.2.1:5140": false, "udp://localhost:5140": false,
		"127.0.0.1:5140": false, "unix:///tmp/x": false, "udp://127.0.0.1": false, "": false,
	} {
		if err := CheckAddress(address); (err == nil) != valid {
			t.Errorf("%q: got error %v; want valid: %v", address, err, valid)
		}
	}
	if _, err := Listen("udp://0.0.0.0:0"); err == nil {
		t.Error("Listen accepted 0.0.0.0")
	}
}

func TestIDsOfLines(t *testing.T) {
	var all []string
	for _, line := range []string{"a", " a", `"a"}`, `a"`, "a}", "a.b", "é", "a\r\n", "a\n\n"} {
		all = append(all, idOf([]byte(line)))
	}
	if want := []string{"a", "a", "a", "", "", "b", "", "a", "a"}; !slices.Equal(all, want) {
		t.Errorf("got %q, want %q", all, want)
	}
}
