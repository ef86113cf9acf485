// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package users finds out as whom a container runs: from what the request and
// the image say, and from /etc/passwd and /etc/group in the image. Those files
// are untrusted; reading them is bounded.
package users

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandflow-cri/sandflow/steps/spec/inroot"
)

// Who is what the request and the image say. UID wins over Name, both over Image.
type Who struct {
	UID  *int64
	Name string
	GID  *int64
	// Image is USER of the image: "", user, user:group, either as name or number.
	Image string
}

// User is whom a container's first process runs as.
type User struct {
	UID, GID uint32
	// Groups are the groups that the image's /etc/group has the user in.
	Groups []uint32
}

// Resolve finds the user in the image mounted at root. A name that is not in the
// image, or an id out of range, is errdefs.ErrInvalidArgument.
func Resolve(root string, who Who) (User, error) {
	name, group := who.spec()
	u, account, err := findUser(root, name)
	if err != nil {
		return User{}, err
	}
	if err := findGroups(root, &u, account, group); err != nil {
		return User{}, err
	}
	if who.GID != nil {
		if *who.GID < 0 || *who.GID > math.MaxInt32 {
			return User{}, fmt.Errorf("group id %d is out of range: %w", *who.GID, errdefs.ErrInvalidArgument)
		}
		u.GID = uint32(*who.GID)
	}
	return u, nil
}

func (w Who) spec() (user, group string) {
	switch {
	case w.UID != nil:
		return fmt.Sprint(*w.UID), ""
	case w.Name != "":
		return w.Name, ""
	}
	user, group, _ = strings.Cut(strings.TrimSpace(w.Image), ":")
	return user, group
}

// findUser returns the user with its primary group, and its name if it has one.
func findUser(root, user string) (User, string, error) {
	if user == "" {
		user = "0"
	}
	id, numeric := parseID(user)
	if !numeric && looksNumeric(user) {
		return User{}, "", fmt.Errorf("user id %s is out of range: %w", user, errdefs.ErrInvalidArgument)
	}
	var found account
	err := lines(root, "/etc/passwd", func(line string) bool {
		a, ok := parseAccount(line)
		if ok && (numeric && a.uid == id || !numeric && a.name == user) {
			found = a
			return false
		}
		return true
	})
	if err != nil {
		return User{}, "", fmt.Errorf("find user %q: %w", user, err)
	}
	if numeric {
		return User{UID: id, GID: found.gid}, found.name, nil
	}
	if found.name == "" {
		return User{}, "", fmt.Errorf("user %q is not in /etc/passwd of the image: %w", user, errdefs.ErrInvalidArgument)
	}
	return User{UID: found.uid, GID: found.gid}, found.name, nil
}

// findGroups fills in the groups that account is a member of, and the primary
// group if one is named.
func findGroups(root string, u *User, account, group string) error {
	id, numeric := parseID(group)
	switch {
	case numeric:
		u.GID, group = id, ""
	case looksNumeric(group):
		return fmt.Errorf("group id %s is out of range: %w", group, errdefs.ErrInvalidArgument)
	}
	if account == "" && group == "" {
		return nil
	}
	named := group == ""
	err := lines(root, "/etc/group", func(line string) bool {
		t, ok := parseTeam(line)
		if ok && !named && t.name == group {
			u.GID, named = t.gid, true
		}
		if ok && account != "" && t.has(account) {
			u.Groups = append(u.Groups, t.gid)
		}
		return len(u.Groups) <= maxGroups
	})
	switch {
	case err != nil:
		return fmt.Errorf("find groups of user %d: %w", u.UID, err)
	case len(u.Groups) > maxGroups:
		return fmt.Errorf("user %q is in more than the limit of %d groups in /etc/group of the image: %w", account, maxGroups, errdefs.ErrInvalidArgument)
	case !named:
		return fmt.Errorf("group %q is not in /etc/group of the image: %w", group, errdefs.ErrInvalidArgument)
	}
	u.Groups = unique(u.Groups)
	return nil
}

// lines calls line for each line of a file of the image; no file is no lines.
func lines(root, path string, line func(string) bool) error {
	f, err := inroot.Open(root, path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := scan(f, line); err != nil {
		return fmt.Errorf("read %s of the image: %w", path, err)
	}
	return nil
}

func looksNumeric(s string) bool {
	digits := strings.TrimLeft(s, "+-")
	return digits != "" && strings.Trim(digits, "0123456789") == ""
}

func unique(ids []uint32) []uint32 {
	seen := make(map[uint32]bool, len(ids))
	return slices.DeleteFunc(ids, func(id uint32) bool {
		if seen[id] {
			return true
		}
		seen[id] = true
		return false
	})
}
