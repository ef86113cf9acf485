// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pki is the one certificate authority of a cluster, with its files in a directory.
type pki struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// holder is whom a certificate is for: a user with groups, and the names of a server.
type holder struct {
	user   string
	groups []string
	names  []string
	ips    []string
}

// newPKI makes an authority that is good for a day, and the key that signs service accounts.
func newPKI(dir string) (*pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	p := &pki{dir: dir, key: key}
	template := certificate("sandflow-lab")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("could not make a certificate authority: %w", err)
	}
	if p.cert, err = x509.ParseCertificate(raw); err != nil {
		return nil, err
	}
	sa, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return p, errors.Join(p.write("ca", raw, key), p.writeKey("sa", sa))
}

func certificate(user string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: user},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}

// issue makes the certificate and key called name.
func (p *pki) issue(name string, h holder) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := certificate(h.user)
	template.Subject.Organization = h.groups
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	template.DNSNames = h.names
	for _, ip := range h.ips {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}
	if len(h.names)+len(h.ips) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, p.cert, key.Public(), p.key)
	if err != nil {
		return fmt.Errorf("could not make a certificate for %s: %w", h.user, err)
	}
	return p.write(name, raw, key)
}

func (p *pki) write(name string, cert []byte, key *ecdsa.PrivateKey) error {
	return errors.Join(p.pem(p.crt(name), "CERTIFICATE", cert), p.writeKey(name, key))
}

func (p *pki) writeKey(name string, key *ecdsa.PrivateKey) error {
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	return errors.Join(p.pem(p.keyOf(name), "PRIVATE KEY", private), p.pem(p.pub(name), "PUBLIC KEY", public))
}

func (p *pki) pem(path, kind string, raw []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600)
}

func (p *pki) crt(name string) string   { return filepath.Join(p.dir, name+".crt") }
func (p *pki) keyOf(name string) string { return filepath.Join(p.dir, name+".key") }
func (p *pki) pub(name string) string   { return filepath.Join(p.dir, name+".pub") }

// kubeconfig makes a certificate for a user and a file that lets that user into the cluster, and
// returns the file's path.
func (p *pki) kubeconfig(name string, h holder) (string, error) {
	if err := p.issue(name, h); err != nil {
		return "", err
	}
	path := filepath.Join(p.dir, name+".kubeconfig")
	return path, writeObject(path, object{
		"apiVersion": "v1", "kind": "Config", "current-context": "lab",
		"clusters": []object{{"name": "lab", "cluster": object{"server": apiServer, "certificate-authority": p.crt("ca")}}},
		"users":    []object{{"name": name, "user": object{"client-certificate": p.crt(name), "client-key": p.keyOf(name)}}},
		"contexts": []object{{"name": "lab", "context": object{"cluster": "lab", "user": name}}},
	})
}
