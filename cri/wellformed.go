// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// wellFormed refuses what no request may have in any of its fields: texts with a zero byte,
// which the kernel would cut off there, and values that an enumeration does not know. What
// is for Windows is not looked at.
func wellFormed(field string, m proto.Message) error {
	if m == nil {
		return nil
	}
	return wellFormedMessage(field, m.ProtoReflect())
}

func wellFormedMessage(path string, m protoreflect.Message) (err error) {
	m.Range(func(d protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		field := path + "." + string(d.Name())
		switch {
		case d.Name() == "windows":
		case d.IsMap():
			err = wellFormedMap(field, d, v.Map())
		case d.IsList():
			for i := range v.List().Len() {
				if err == nil {
					err = wellFormedValue(fmt.Sprintf("%s[%d]", field, i), d, v.List().Get(i))
				}
			}
		default:
			err = wellFormedValue(field, d, v)
		}
		return err == nil
	})
	return err
}

func wellFormedMap(field string, d protoreflect.FieldDescriptor, m protoreflect.Map) (err error) {
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if strings.ContainsRune(k.String(), 0) {
			err = invalid("%s: the key %q has a zero byte", field, k.String())
			return false
		}
		err = wellFormedValue(field+"["+k.String()+"]", d.MapValue(), v)
		return err == nil
	})
	return err
}

func wellFormedValue(field string, d protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch d.Kind() {
	case protoreflect.StringKind:
		if strings.ContainsRune(v.String(), 0) {
			return invalid("%s: %q has a zero byte", field, v.String())
		}
	case protoreflect.EnumKind:
		if d.Enum().Values().ByNumber(v.Enum()) == nil {
			return invalid("%s: %d is unknown", field, v.Enum())
		}
	case protoreflect.MessageKind:
		return wellFormedMessage(field, v.Message())
	default:
	}
	return nil
}
