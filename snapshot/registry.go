// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
)

// credentials are what a request gave, made ready for one registry host.
type credentials struct {
	server       string // only this host; empty: the upstream registry
	user, secret string
	bearer       string
}

// newCredentials checks a; none are given with a nil or empty Auth.
func newCredentials(a *Auth) (*credentials, error) {
	if a == nil {
		return nil, nil //nolint:nilnil // no credentials are no error
	}
	c := &credentials{user: a.Username, secret: a.Password, bearer: a.RegistryToken}
	if a.ServerAddress != "" {
		host, err := serverHost(a.ServerAddress)
		if err != nil {
			return nil, err
		}
		c.server = host
	}
	switch {
	case a.Username != "":
	case a.IdentityToken != "":
		c.user, c.secret = "", a.IdentityToken
	case a.Auth != "":
		b, err := base64.StdEncoding.DecodeString(a.Auth)
		user, secret, ok := strings.Cut(strings.TrimRight(string(b), "\x00"), ":")
		if err != nil || !ok {
			// The cause may quote what is secret.
			return nil, fmt.Errorf("auth of the request is not base64 of user:password: %w", errdefs.ErrInvalidArgument)
		}
		c.user, c.secret = user, secret
	}
	if c.secret == "" && c.bearer == "" {
		return nil, nil //nolint:nilnil // no credentials are no error
	}
	return c, nil
}

func serverHost(address string) (string, error) {
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "", fmt.Errorf("server address of the request's auth is not a host or URL: %w", errdefs.ErrInvalidArgument)
	}
	return canonicalHost(u.Host), nil
}

// canonicalHost gives all names of Docker Hub the one that serves it.
func canonicalHost(host string) string {
	switch host = strings.ToLower(host); host {
	case "docker.io", "index.docker.io":
		return "registry-1.docker.io"
	default:
		return host
	}
}

// isFor says whether host is the one that may see the credentials.
func (c *credentials) isFor(host, upstream string) bool {
	if c == nil {
		return false
	}
	if c.server != "" {
		return canonicalHost(host) == c.server
	}
	return strings.EqualFold(host, upstream)
}

// resolver resolves and fetches from the hosts that hosts.toml names for a
// registry. The credentials reach one of them only.
func (s *Store) resolver(ctx context.Context, creds *credentials, p *progress) remotes.Resolver {
	var upstream string // the last host: where the reference's registry really is
	mirrors := newMirrors(s.mirrorTimeout())
	hosts := config.ConfigureHosts(ctx, config.HostOptions{
		HostDir: s.hostDir,
		Credentials: func(host string) (string, string, error) {
			if !creds.isFor(host, upstream) {
				return "", "", nil
			}
			return creds.user, creds.secret, nil
		},
		UpdateClient: func(c *http.Client) error {
			c.Transport = p.watch(c.Transport)
			c.CheckRedirect = keepHome
			return nil
		},
	})
	return docker.NewResolver(docker.ResolverOptions{
		Headers: http.Header{"User-Agent": []string{"sandflow"}},
		Hosts: func(domain string) ([]docker.RegistryHost, error) {
			list, err := hosts(domain)
			if err != nil || len(list) == 0 {
				return list, err
			}
			upstream = list[len(list)-1].Host
			mirrors.bound(list)
			for i := range list {
				if creds.isFor(list[i].Host, upstream) {
					list[i].Header = creds.header(list[i].Header)
				}
			}
			return list, nil
		},
	})
}

// mirrorTimeout is short enough that a mirror is passed over before the pull is given up.
func (s *Store) mirrorTimeout() time.Duration {
	most := s.config.PullProgressTimeout / 2
	if most > 0 {
		return min(s.config.MirrorTimeout, most)
	}
	return s.config.MirrorTimeout
}

// keepHome takes the credentials off a redirect to another host. net/http does so
// only for other domains, not for another port or a subdomain.
func keepHome(r *http.Request, via []*http.Request) error {
	const most = 10 // as net/http
	if len(via) >= most {
		return fmt.Errorf("stopped after %d redirects: %w", most, errdefs.ErrUnavailable)
	}
	if r.URL.Host != via[0].URL.Host || (via[0].URL.Scheme == "https" && r.URL.Scheme != "https") {
		r.Header.Del("Authorization")
	}
	return nil
}

// header is the host's configured header, where the request's credentials win.
func (c *credentials) header(configured http.Header) http.Header {
	h := configured.Clone()
	if h == nil {
		h = http.Header{}
	}
	h.Del("Authorization")
	if c.bearer != "" {
		h.Set("Authorization", "Bearer "+c.bearer)
	}
	return h
}

func (s *Store) hostDir(host string) (string, error) {
	for _, root := range filepath.SplitList(s.config.RegistryConfigPath) {
		dir, err := config.HostDirFromRoot(root)(host)
		if errdefs.IsNotFound(err) {
			continue
		}
		return dir, err
	}
	return "", errdefs.ErrNotFound
}

// registryError gives the error of a pull the class that kubelet looks at.
func registryError(err error) error {
	var status remoteerrors.ErrUnexpectedStatus
	switch {
	case errors.As(err, &status):
		if class := statusClass(status.StatusCode); class != nil {
			return classed{class, err}
		}
	case errors.Is(err, docker.ErrInvalidAuthorization):
		return classed{errdefs.ErrUnauthenticated, err}
	}
	return err
}

func statusClass(code int) error {
	switch code {
	case http.StatusUnauthorized:
		return errdefs.ErrUnauthenticated
	case http.StatusForbidden:
		return errdefs.ErrPermissionDenied
	case http.StatusNotFound:
		return errdefs.ErrNotFound
	case http.StatusTooManyRequests:
		return errdefs.ErrResourceExhausted
	}
	if code >= http.StatusInternalServerError {
		return errdefs.ErrUnavailable
	}
	return nil
}
