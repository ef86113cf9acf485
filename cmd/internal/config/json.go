// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// parseJSON reads JSON token by token, since encoding/json says nowhere on which
// line a key was and takes the last of two equal keys in silence.
func parseJSON(file string, text []byte) (map[string]any, origin, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	j := jsonReader{d: d, text: text, file: file, lines: map[string]int{}}
	o := origin{file: file, lines: j.lines}
	v, err := j.value("")
	if err == nil {
		if _, end := d.Token(); !errors.Is(end, io.EOF) {
			err = j.fault("", "there is text behind the end of the object")
		}
	}
	if err != nil {
		return nil, o, err
	}
	tree, ok := v.(map[string]any)
	if !ok {
		return nil, o, j.fault("", "the file must hold one JSON object")
	}
	return tree, o, nil
}

type jsonReader struct {
	d     *json.Decoder
	text  []byte
	file  string
	lines map[string]int
}

func (j *jsonReader) fault(path, msg string) *Error {
	return &Error{File: j.file, Line: lineAt(j.text, int(j.d.InputOffset())), Path: path, Msg: msg}
}

func (j *jsonReader) token(path string) (json.Token, error) {
	t, err := j.d.Token()
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		if path != "" {
			if _, ok := j.lines[path]; !ok {
				j.lines[path] = lineAt(j.text, int(j.d.InputOffset()))
			}
		}
		return t, nil
	case errors.As(err, &syntax):
		return nil, &Error{File: j.file, Line: lineAt(j.text, int(syntax.Offset)), Path: path, Msg: syntax.Error()}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, j.fault(path, "the text ends too early")
	default:
		return nil, j.fault(path, err.Error())
	}
}

func (j *jsonReader) value(path string) (any, error) {
	t, err := j.token(path)
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '{' {
			return j.object(path)
		}
		return j.array(path)
	case json.Number:
		if i, err := t.Int64(); err == nil {
			return i, nil
		}
		f, err := t.Float64()
		if err != nil {
			return nil, j.fault(path, err.Error())
		}
		return f, nil
	default:
		return t, nil
	}
}

func (j *jsonReader) object(path string) (any, error) {
	out := map[string]any{}
	for j.d.More() {
		t, err := j.token("")
		if err != nil {
			return nil, err
		}
		key, _ := t.(string)
		p := join(path, key)
		if _, twice := out[key]; twice {
			return nil, j.fault(p, "the key is written twice")
		}
		j.lines[p] = lineAt(j.text, int(j.d.InputOffset()))
		if out[key], err = j.value(p); err != nil {
			return nil, err
		}
	}
	_, err := j.token("")
	return out, err
}

func (j *jsonReader) array(path string) (any, error) {
	out := []any{}
	for j.d.More() {
		v, err := j.value(at(path, len(out)))
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	_, err := j.token("")
	return out, err
}
