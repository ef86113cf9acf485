// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	toml "github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// origin remembers where each key was written, so that whoever finds a fault
// later, such as the engine, can still name the line.
type origin struct {
	file  string
	lines map[string]int // key path → line
	// implied are tables that only the keys below them mention, with the first line of such a key.
	implied map[string]int
}

// line finds the line of a key, or of the nearest table around it that is written down.
func (o origin) line(path string) int {
	if n, ok := o.implied[path]; ok {
		return n
	}
	for p := path; p != ""; p = parent(p) {
		if n, ok := o.lines[p]; ok {
			return n
		}
	}
	return 0
}

func (o origin) set(path string) bool {
	_, ok := o.lines[path]
	return ok
}

func parent(path string) string {
	quoted := strings.HasSuffix(path, "\"")
	if quoted {
		path = strings.TrimSuffix(path, "\"")
		return strings.TrimRight(path[:max(0, strings.LastIndexByte(path, '"'))], ".")
	}
	return path[:max(0, strings.LastIndexAny(path, ".["))]
}

// join appends a key to a path, quoting keys that are not bare.
func join(path, key string) string {
	bare := key != "" && strings.IndexFunc(key, func(r rune) bool {
		return r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) < 0
	if !bare {
		key = strconv.Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func at(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// parse reads text into a tree of plain values and the line of each key.
func parse(file string, text []byte) (map[string]any, origin, error) {
	if isJSON(file, text) {
		return parseJSON(file, text)
	}
	return parseTOML(file, text)
}

func isJSON(file string, text []byte) bool {
	switch strings.ToLower(filepath.Ext(file)) {
	case ".json":
		return true
	case ".toml":
		return false
	}
	return bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{"))
}

func parseTOML(file string, text []byte) (map[string]any, origin, error) {
	tree := map[string]any{}
	if err := toml.Unmarshal(text, &tree); err != nil {
		out := &Error{File: file, Msg: err.Error()}
		var de *toml.DecodeError
		if errors.As(err, &de) {
			out.Line, _ = de.Position()
			out.Path, out.Msg = strings.Join(de.Key(), "."), strings.TrimPrefix(de.Error(), "toml: ")
		}
		return nil, origin{file: file}, out
	}
	w := walker{text: text, lines: map[string]int{}, implied: map[string]int{}, counts: map[string]int{}}
	w.walk()
	return tree, origin{file: file, lines: w.lines, implied: w.implied}, nil
}

// walker notes the line of every key and array element of a TOML text that is
// known to be well formed.
type walker struct {
	p       unstable.Parser
	text    []byte
	lines   map[string]int
	implied map[string]int
	counts  map[string]int // elements so far of each array of tables
}

func (w *walker) walk() {
	w.p.Reset(w.text)
	table := ""
	for w.p.NextExpression() {
		e := w.p.Expression()
		switch e.Kind {
		case unstable.Table:
			table = w.keys("", e.Key())
		case unstable.ArrayTable:
			path := w.keys("", e.Key())
			n := w.counts[path]
			w.counts[path] = n + 1
			table = at(path, n)
			w.lines[table] = w.lines[path]
		case unstable.KeyValue:
			w.pair(table, e)
		default:
		}
	}
}

// keys follows a dotted key from path. Elements of an array of tables are
// addressed by the key of the array: it means the last of them.
func (w *walker) keys(path string, it unstable.Iterator) string {
	for it.Next() {
		n := it.Node()
		if c := w.counts[path]; c > 0 {
			path = at(path, c-1)
		}
		path = join(path, string(n.Data))
		if it.IsLast() {
			w.lines[path] = w.line(n)
			delete(w.implied, path)
		} else if w.lines[path] == 0 && w.implied[path] == 0 {
			w.implied[path] = w.line(n)
		}
	}
	return path
}

func (w *walker) pair(table string, e *unstable.Node) {
	path := w.keys(table, e.Key())
	w.value(path, e.Value())
}

func (w *walker) value(path string, n *unstable.Node) {
	switch n.Kind {
	case unstable.Array:
		i := 0
		for it := n.Children(); it.Next(); {
			c := it.Node()
			if c.Kind == unstable.Comment {
				continue
			}
			elem := at(path, i)
			w.lines[elem] = w.line(first(c))
			if w.lines[elem] == 0 {
				w.lines[elem] = w.lines[path]
			}
			w.value(elem, c)
			i++
		}
	case unstable.InlineTable:
		for it := n.Children(); it.Next(); {
			if c := it.Node(); c.Kind == unstable.KeyValue {
				w.pair(path, c)
			}
		}
	default:
	}
}

// first is the first node below n that has a place in the text; arrays have none of their own.
func first(n *unstable.Node) *unstable.Node {
	for n.Kind == unstable.Array && n.Child() != nil {
		n = n.Child()
	}
	return n
}

func (w *walker) line(n *unstable.Node) int {
	if n.Raw.Length == 0 {
		return 0
	}
	return lineAt(w.text, int(n.Raw.Offset))
}

func lineAt(text []byte, offset int) int {
	return 1 + bytes.Count(text[:min(offset, len(text))], []byte("\n"))
}
