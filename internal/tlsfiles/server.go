package tlsfiles

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Server names the PEM files of a TLS server. Without Cert there is no TLS. With ClientCA, clients must have a certificate
// that this CA has signed. Changed files are read again at the next handshake.
type Server struct {
	Cert       string `name:"tls-cert" setting:"flag" placeholder:"FILE" help:"Certificate of the gRPC listener. Read again when it changes."`
	Key        string `name:"tls-key" setting:"flag" placeholder:"FILE" help:"Private key of that certificate."`
	ClientCA   string `name:"tls-client-ca" setting:"flag" placeholder:"FILE" help:"Require client certificates signed by this CA."`
	ClientName string `name:"tls-client-name" setting:"flag" placeholder:"NAME" help:"Require client certificates for this DNS name."`
}

// Check returns an error for files that do not belong together.
func (f Server) Check() error {
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return errors.New("TLS needs both --tls-cert and --tls-key")
	case f.ClientCA != "" && f.Cert == "":
		return errors.New("--tls-client-ca needs --tls-cert and --tls-key")
	case f.ClientName != "" && f.ClientCA == "":
		return errors.New("--tls-client-name needs --tls-client-ca")
	}
	return nil
}

// Config returns the configuration of a server. While changed files cannot be used, the previous ones stay in use, and
// log gets the reason.
func (f Server) Config(log *zap.Logger) (*tls.Config, error) {
	k := &reloadingTLS{files: f, log: log}
	k.seen = f.stamps()
	var err error
	if k.config, err = f.load(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return k.current(), nil },
	}, nil
}

func (f Server) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("read TLS certificate and key: %w", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{pair}}
	if f.ClientCA != "" {
		if c.ClientCAs, err = Pool(f.ClientCA); err != nil {
			return nil, fmt.Errorf("read TLS client CA: %w", err)
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	if f.ClientName != "" {
		c.VerifyConnection = func(state tls.ConnectionState) error {
			return state.PeerCertificates[0].VerifyHostname(f.ClientName) // here the client has a certificate, and crypto/tls has verified it
		}
	}
	return c, nil
}

type stamp struct {
	modified time.Time
	size     int64
}

func (f Server) stamps() (s [3]stamp) {
	for i, name := range []string{f.Cert, f.Key, f.ClientCA} {
		if info, err := os.Stat(name); err == nil {
			s[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return s
}

// reloadingTLS holds the TLS configuration from the last time that the files matched each other. An update writes
// the files one after the other, so they do not match until it is complete.
type reloadingTLS struct {
	files Server
	log   *zap.Logger

	mu      sync.Mutex  // guards the fields after it
	seen    [3]stamp    // of the files in config
	config  *tls.Config // never changed
	problem string      // why the files were not read again the last time; "" if they were
}

func (k *reloadingTLS) current() *tls.Config {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.files.stamps()
	if now == k.seen {
		return k.config
	}
	c, err := k.files.load()
	if err != nil { // tried again at the next handshake, because new permissions do not change the stamps
		if k.problem != err.Error() {
			k.problem = err.Error()
			k.log.Error("TLS files (--tls-cert, --tls-key, --tls-client-ca) cannot be used; the previous ones stay in use; correct the files", zap.Error(err))
		}
		return k.config
	}
	k.log.Info("TLS files read again")
	k.seen, k.config, k.problem = now, c, ""
	return c
}
