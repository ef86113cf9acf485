// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// decoder lays a tree of plain values over Go values, strictly, and goes on
// after a fault so that all of them are reported at once.
type decoder struct {
	origin origin
	errs   []error
}

func (d *decoder) err() error { return errors.Join(d.errs...) }

func (d *decoder) fault(path, format string, args ...any) {
	d.errs = append(d.errs, &Error{
		File: d.origin.file, Line: d.origin.line(path), Path: path, Msg: fmt.Sprintf(format, args...),
	})
}

func (d *decoder) decode(path string, from any, to reflect.Value) {
	switch p := to.Addr().Interface().(type) {
	case *Duration:
		d.duration(path, from, p)
		return
	case *Size:
		d.size(path, from, p)
		return
	case *map[string]any:
		d.verbatim(path, from, p)
		return
	}
	switch to.Kind() {
	case reflect.Struct:
		d.table(path, from, to)
	case reflect.Map:
		d.named(path, from, to)
	case reflect.Slice:
		d.list(path, from, to)
	case reflect.String:
		scalar(d, path, from, "a string", to.SetString)
	case reflect.Bool:
		scalar(d, path, from, "true or false", to.SetBool)
	case reflect.Int:
		scalar(d, path, from, "an integer", to.SetInt)
	default:
		panic("config: no rule for " + to.Type().String())
	}
}

func scalar[T any](d *decoder, path string, from any, want string, set func(T)) {
	v, ok := from.(T)
	if !ok {
		d.fault(path, "want %s, not %s", want, describe(from))
		return
	}
	set(v)
}

func (d *decoder) table(path string, from any, to reflect.Value) {
	m, ok := d.asTable(path, from)
	if !ok {
		return
	}
	fields := map[string]reflect.Value{}
	for i := range to.NumField() {
		if tag := to.Type().Field(i).Tag.Get("toml"); tag != "" {
			fields[tag] = to.Field(i)
		}
	}
	for _, key := range d.inOrder(path, m) {
		p := join(path, key)
		f, ok := fields[key]
		if !ok {
			known := slices.Sorted(maps.Keys(fields))
			d.errs = append(d.errs, &Error{
				File: d.origin.file, Line: d.origin.line(p), Path: p, Msg: "unknown key", Known: known,
			})
			continue
		}
		d.decode(p, m[key], f)
	}
}

// named fills a map of tables; a key that is not there yet starts with the
// defaults of its kind.
func (d *decoder) named(path string, from any, to reflect.Value) {
	m, ok := d.asTable(path, from)
	if !ok {
		return
	}
	if to.IsNil() {
		to.Set(reflect.MakeMap(to.Type()))
	}
	for _, key := range d.inOrder(path, m) {
		elem := reflect.New(to.Type().Elem()).Elem()
		if old := to.MapIndex(reflect.ValueOf(key)); old.IsValid() {
			elem.Set(old)
		} else if h, ok := elem.Addr().Interface().(*Handler); ok {
			*h = newHandler()
		}
		d.decode(join(path, key), m[key], elem)
		to.SetMapIndex(reflect.ValueOf(key), elem)
	}
}

func (d *decoder) list(path string, from any, to reflect.Value) {
	items, ok := from.([]any)
	if !ok {
		d.fault(path, "want a list, not %s", describe(from))
		return
	}
	out := reflect.MakeSlice(to.Type(), len(items), len(items))
	for i, item := range items {
		d.decode(at(path, i), item, out.Index(i))
	}
	to.Set(out)
}

func (d *decoder) verbatim(path string, from any, to *map[string]any) {
	m, ok := d.asTable(path, from)
	if !ok {
		return
	}
	merged := maps.Clone(*to)
	if merged == nil {
		merged = map[string]any{}
	}
	maps.Copy(merged, m)
	*to = merged
}

func (d *decoder) asTable(path string, from any) (map[string]any, bool) {
	m, ok := from.(map[string]any)
	if !ok {
		d.fault(path, "want a table, not %s", describe(from))
	}
	return m, ok
}

// inOrder lists keys as they are written in the file, so that errors come in that order.
func (d *decoder) inOrder(path string, m map[string]any) []string {
	keys := slices.Sorted(maps.Keys(m))
	slices.SortStableFunc(keys, func(a, b string) int {
		return d.origin.line(join(path, a)) - d.origin.line(join(path, b))
	})
	return keys
}

func (d *decoder) duration(path string, from any, to *Duration) {
	s, ok := from.(string)
	if !ok {
		d.fault(path, "want a duration such as \"30s\", not %s", describe(from))
		return
	}
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 {
		d.fault(path, "%q is not a duration such as \"30s\", \"5m\" or \"4h\"", s)
		return
	}
	*to = Duration(v)
}

func (d *decoder) size(path string, from any, to *Size) {
	switch v := from.(type) {
	case int64:
		if v < 0 {
			d.fault(path, "a size cannot be negative")
			return
		}
		*to = Size(v)
	case string:
		n, ok := parseSize(v)
		if !ok {
			d.fault(path, "%q is not a size such as 16384, \"64KiB\" or \"16MiB\"", v)
			return
		}
		*to = n
	default:
		d.fault(path, "want a size such as \"16MiB\", not %s", describe(from))
	}
}

func parseSize(s string) (Size, bool) {
	number, unit := s, int64(1)
	for suffix, n := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			number, unit = strings.TrimSpace(rest), n
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return 0, false
	}
	return Size(n * unit), true
}

func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return fmt.Sprintf("the string %q", v)
	case bool, int64, float64:
		return fmt.Sprint(v)
	case []any:
		return "a list"
	case map[string]any:
		return "a table"
	default:
		return fmt.Sprintf("a %T", v)
	}
}
