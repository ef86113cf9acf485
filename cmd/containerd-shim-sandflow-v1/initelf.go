// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"runtime"

	"github.com/containerd/errdefs"
)

// initCode is "for (;;) pause();" in the instructions of each architecture. A
// Go program would hold megabytes per pod for that.
var initCode = map[string]struct {
	machine elf.Machine
	code    []byte
}{
	"amd64": {elf.EM_X86_64, []byte{
		0xb8, 0x22, 0x00, 0x00, 0x00, // mov $34 (pause), %eax
		0x0f, 0x05, // syscall
		0xeb, 0xf7, // jmp to the first instruction
	}},
	"arm64": {elf.EM_AARCH64, words(
		0xd2800000, // mov x0, #0
		0xd2800001, // mov x1, #0
		0xd2800002, // mov x2, #0
		0xd2800003, // mov x3, #0
		0xd2800004, // mov x4, #0
		0xd2800928, // mov x8, #73 (ppoll)
		0xd4000001, // svc #0
		0x17fffff9, // b to the first instruction
	)},
}

func words(ws ...uint32) []byte {
	var b []byte
	for _, w := range ws {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

// initProgram is the ELF executable of the init: two headers and the code.
func initProgram() ([]byte, error) {
	arch, ok := initCode[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("shared PID namespace on %s: %w", runtime.GOARCH, errdefs.ErrNotImplemented)
	}
	const base, headerSize, progSize = 0x400000, 64, 56
	header := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(arch.machine), Version: uint32(elf.EV_CURRENT),
		Entry: base + headerSize + progSize, Phoff: headerSize,
		Ehsize: headerSize, Phentsize: progSize, Phnum: 1,
	}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS] = byte(elf.ELFCLASS64)
	header.Ident[elf.EI_DATA] = byte(elf.ELFDATA2LSB)
	header.Ident[elf.EI_VERSION] = byte(elf.EV_CURRENT)
	size := uint64(headerSize + progSize + len(arch.code))
	prog := elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X),
		Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Align: 0x10000,
	}
	var b bytes.Buffer
	for _, part := range []any{header, prog, arch.code} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}
