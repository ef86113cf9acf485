// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"strconv"
	"strings"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// readPressure reads a file of pressure stall information; nil where the kernel
// has none or has it switched off.
func readPressure(dir, name string) *runtime.PsiStats {
	text, err := readText(dir, name)
	if err != nil {
		return nil
	}
	return parsePressure(text)
}

// parsePressure reads lines like "some avg10=0.12 avg60=0.00 avg300=0.00 total=123",
// the total in microseconds (Documentation/accounting/psi.rst).
func parsePressure(text string) *runtime.PsiStats {
	out := &runtime.PsiStats{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		switch fields[0] {
		case "some":
			out.Some = parsePSI(fields[1:])
		case "full":
			out.Full = parsePSI(fields[1:])
		}
	}
	if out.Some == nil && out.Full == nil {
		return nil
	}
	return out
}

func parsePSI(fields []string) *runtime.PsiData {
	d := &runtime.PsiData{}
	for _, f := range fields {
		key, text, _ := strings.Cut(f, "=")
		if key == "total" {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return nil
			}
			d.Total = n * uint64(time.Microsecond)
			continue
		}
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil
		}
		switch key {
		case "avg10":
			d.Avg10 = v
		case "avg60":
			d.Avg60 = v
		case "avg300":
			d.Avg300 = v
		}
	}
	return d
}
