// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package users

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

const (
	// maxFile bounds the bytes read of an image's passwd or group file.
	maxFile = 8 << 20
	// maxLine bounds one line of them.
	maxLine = 1 << 20
	// maxGroups is NGROUPS_MAX of Linux: more could not be set anyway.
	maxGroups = 65536
)

// account is a line of passwd(5).
type account struct {
	name     string
	uid, gid uint32
}

// team is a line of group(5).
type team struct {
	name    string
	gid     uint32
	members string // comma-separated; not split unless asked, since lists are long
}

func (t team) has(member string) bool {
	for m := range strings.SplitSeq(t.members, ",") {
		if strings.TrimSpace(m) == member {
			return true
		}
	}
	return false
}

// scan calls line for each line that is neither empty nor a comment, until line
// returns false. Reading is bounded by maxFile and maxLine.
func scan(r io.Reader, line func(string) bool) error {
	limited := &io.LimitedReader{R: r, N: maxFile + 1}
	s := bufio.NewScanner(limited)
	s.Buffer(nil, maxLine)
	for s.Scan() {
		if limited.N <= 0 {
			return fmt.Errorf("more than the limit of %d bytes", maxFile)
		}
		text := strings.TrimSpace(s.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		if !line(text) {
			return nil
		}
	}
	if errors.Is(s.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("a line of more than the limit of %d bytes", maxLine)
	}
	return s.Err()
}

// parseAccount reads a line of passwd(5); ok is false for a damaged one, which is skipped as libc does.
func parseAccount(line string) (a account, ok bool) {
	f := strings.SplitN(line, ":", 5)
	if len(f) < 4 || f[0] == "" {
		return account{}, false
	}
	uid, okUID := parseID(f[2])
	gid, okGID := parseID(f[3])
	return account{name: f[0], uid: uid, gid: gid}, okUID && okGID
}

// parseTeam reads a line of group(5).
func parseTeam(line string) (t team, ok bool) {
	f := strings.SplitN(line, ":", 4)
	if len(f) < 3 || f[0] == "" {
		return team{}, false
	}
	gid, ok := parseID(f[2])
	t = team{name: f[0], gid: gid}
	if len(f) == 4 {
		t.members = f[3]
	}
	return t, ok
}

// parseID reads a user or group id. 2³¹ and above is refused, as by the other runtimes.
func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n > math.MaxInt32 {
		return 0, false
	}
	return uint32(n), true
}
