// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

var (
	//go:embed src/pause.c
	pauseSource string
	//go:embed src/nonewprivs.c
	nonewprivsSource string
	//go:embed src/nmeter.c
	nmeterSource string
	//go:embed src/sh.c
	shSource string
)

const (
	passwd = `root:x:0:0:root:/root:/bin/sh
www-data:x:33:33:www-data:/var/www:/bin/false
default-user:x:1000:1000:Linux User,,,:/home/default-user:/bin/sh
nobody:x:65534:65534:nobody:/home:/bin/false
`
	group = `root:x:0:
www-data:x:33:
default-user:x:1000:
group-defined-in-image:x:50000:default-user
nogroup:x:65534:
`
	nginxConf = `worker_processes 1;
pid /var/run/nginx.pid;
error_log /dev/stderr notice;
events { worker_connections 64; }
http {
	access_log /dev/stdout;
	server {
		listen %d;
		location / { default_type text/html; return 200 "<title>Welcome to nginx!</title>\n"; }
	}
}
`
	pathEnv = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

	e2e   = "registry.k8s.io/e2e-test-images/"
	tools = "gcr.io/k8s-staging-cri-tools/"
)

// parts are the layers that images are put together from.
type parts struct {
	base, nginx, nonewprivs, pause v1.Layer

	debian *debian
}

// gather makes the parts from Debian's packages, of which more can be named, and our small C
// programs.
func gather(ctx context.Context, dir string, more ...string) (*parts, error) {
	packages := append([]string{"busybox", "nginx", "util-linux", "util-linux-extra", "procps"}, more...)
	deb, err := unpack(ctx, filepath.Join(dir, "debian"), packages...)
	if err != nil {
		return nil, err
	}
	p := &parts{debian: deb}
	if p.base, err = baseLayer(ctx, deb); err != nil {
		return nil, err
	}
	files, err := deb.program("nginx", "usr/sbin/nginx")
	if err != nil {
		return nil, err
	}
	files = append(files, file{path: "var/log/nginx", mode: os.ModeDir | 0o755}, file{path: "var/lib/nginx", mode: os.ModeDir | 0o755})
	if p.nginx, err = layer(files); err != nil {
		return nil, err
	}
	if p.pause, err = compiled(ctx, dir, "pause", pauseSource, 0o755); err != nil {
		return nil, err
	}
	p.nonewprivs, err = compiled(ctx, dir, "nnp", nonewprivsSource, 0o755|os.ModeSetuid)
	return p, err
}

// baseLayer is a small system: busybox with its applets as hard links, since critest masks one
// of them and expects the others to stay, and a shell that would run applets by itself fails.
func baseLayer(ctx context.Context, deb *debian) (v1.Layer, error) {
	files, err := deb.program("busybox", "bin/busybox")
	if err != nil {
		return nil, err
	}
	names, err := applets(ctx, files)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if name != "busybox" {
			files = append(files, file{path: "bin/" + name, hard: "bin/busybox", mode: 0o755})
		}
	}
	// critest calls these, which Debian's busybox leaves out.
	for _, name := range []string{"ipcs", "pgrep"} {
		more, err := deb.program(name, "usr/bin/"+name)
		if err != nil {
			return nil, err
		}
		files = append(files, missing(files, more)...)
	}
	for _, d := range []string{"dev", "proc", "sys", "root", "home", "run", "etc", "usr/bin", "usr/sbin", "sbin", "var/www", "var/log"} {
		files = append(files, file{path: d, mode: os.ModeDir | 0o755})
	}
	files = append(files,
		file{path: "tmp", mode: os.ModeDir | os.ModeSticky | 0o777},
		file{path: "var/run", link: "/run", mode: 0o777},
		file{path: "etc/passwd", text: passwd, mode: 0o644},
		file{path: "etc/group", text: group, mode: 0o644},
		file{path: "www/index.html", text: "hello from a sandflow pod\n", mode: 0o644},
	)
	return layer(files)
}

// missing are those of more that are not in files yet, by their paths.
func missing(files, more []file) []file {
	have := map[string]bool{}
	for _, f := range files {
		have[f.path] = true
	}
	var out []file
	for _, f := range more {
		if !have[f.path] {
			out = append(out, f)
		}
	}
	return out
}

// compiled makes a layer with one static program in /bin.
func compiled(ctx context.Context, dir, name, source string, mode os.FileMode) (v1.Layer, error) {
	src, bin := filepath.Join(dir, name+".c"), filepath.Join(dir, name)
	if err := os.WriteFile(src, []byte(source), 0o644); err != nil {
		return nil, err
	}
	if _, err := run(ctx, dir, "gcc", "-Os", "-s", "-static", "-o", bin, src); err != nil {
		return nil, fmt.Errorf("could not compile %s: %w", name, err)
	}
	return layer([]file{{path: "bin/" + name, from: bin, mode: mode}})
}

func shell() v1.Config { return v1.Config{Env: []string{pathEnv}, Cmd: []string{"sh"}} }

func as(user string) v1.Config {
	c := shell()
	c.User = user
	return c
}

// recipes puts all images together.
func (p *parts) recipes() ([]named, error) {
	b := &book{parts: p}
	b.system(shell(), e2e+"busybox:1.29-2")
	b.system(as("1002"), tools+"test-image-user-uid:latest")
	b.system(as("www-data"), tools+"test-image-user-username:latest")
	b.system(as("1003:1004"), tools+"test-image-user-uid-group:latest")
	b.system(as("www-data:1004"), tools+"test-image-user-username-group:latest")
	b.system(as("1000"), tools+"test-image-predefined-group:latest")
	b.marked("1", tools+"test-image-1:latest")
	b.marked("2", tools+"test-image-2:latest")
	b.marked("3", tools+"test-image-3:latest")
	b.marked("latest", tools+"test-image-latest:latest")
	b.marked("tags", tools+"test-image-tags:1", tools+"test-image-tags:2", tools+"test-image-tags:3")
	b.marked("tag", tools+"test-image-tag:test")
	b.marked("all", tools+"test-image-tag:all")
	b.marked("digest", "gcr.io/"+DigestRepository+":latest")
	b.server(80, e2e+"nginx:1.14-2")
	b.server(12003, tools+"hostnet-nginx-amd64:latest", tools+"hostnet-nginx-arm64:latest")
	b.one(v1.Config{Env: []string{pathEnv}, Cmd: []string{"/bin/nnp"}}, []v1.Layer{p.base, p.nonewprivs}, e2e+"nonewprivs:1.3")
	httpd := v1.Config{Env: []string{pathEnv}, Cmd: []string{"sh", "-c", "echo httpd: listening on port 80 >&2; exec httpd -f -p 80 -h /www"}}
	b.one(httpd, []v1.Layer{p.base}, e2e+"httpd:2.4.39-4")
	b.one(v1.Config{Env: []string{pathEnv}, Cmd: []string{"httpd", "-f", "-v", "-p", "80", "-h", "/www"}}, []v1.Layer{p.base}, Demo)
	b.one(v1.Config{Env: []string{pathEnv}, Entrypoint: []string{"/bin/pause"}}, []v1.Layer{p.pause}, Pause)
	// Pulled and removed by critest: must be another image than the one that is pinned.
	b.one(v1.Config{Env: []string{pathEnv, "MARK=3.9"}, Entrypoint: []string{"/bin/pause"}}, []v1.Layer{p.pause}, "registry.k8s.io/pause:3.9")
	return b.all, b.err
}

// book collects images up to the first error.
type book struct {
	*parts
	all []named
	err error
}

func (b *book) one(cfg v1.Config, layers []v1.Layer, names ...string) {
	if b.err != nil {
		return
	}
	img, err := image(cfg, layers...)
	if err != nil {
		b.err = fmt.Errorf("could not build image %s: %w", names[0], err)
		return
	}
	b.all = append(b.all, named{image: img, names: names})
}

func (b *book) system(cfg v1.Config, names ...string) { b.one(cfg, []v1.Layer{b.base}, names...) }

// marked is the base with a file of its own, so that it is an image of its own.
func (b *book) marked(mark string, names ...string) {
	l, err := layer([]file{{path: "mark-" + mark, text: mark, mode: 0o644}})
	if err != nil {
		b.err = err
		return
	}
	b.one(shell(), []v1.Layer{b.base, l}, names...)
}

// server is nginx on a port.
func (b *book) server(port int, names ...string) {
	l, err := layer([]file{{path: "etc/nginx/nginx.conf", text: fmt.Sprintf(nginxConf, port), mode: 0o644}})
	if err != nil {
		b.err = err
		return
	}
	cfg := v1.Config{
		Env:        []string{pathEnv},
		Cmd:        []string{"/usr/sbin/nginx", "-c", "/etc/nginx/nginx.conf", "-g", "daemon off;"},
		StopSignal: "SIGQUIT",
		ExposedPorts: map[string]struct{}{
			fmt.Sprintf("%d/tcp", port): {},
		},
	}
	b.one(cfg, []v1.Layer{b.base, b.nginx, l}, names...)
}
