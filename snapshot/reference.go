// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// minPrefix is how many digits of an ID must be given to find an image by them.
const minPrefix = 4

var hexDigits = regexp.MustCompile(`^[0-9a-f]+$`)

// Normalize gives a reference its full form: docker.io and library where the
// domain or the repository is short, "latest" where neither tag nor digest is
// given, and no tag where there is a digest, since the digest decides. The error
// is errdefs.ErrInvalidArgument.
func Normalize(ref string) (string, error) {
	named, err := normalize(ref)
	if err != nil {
		return "", err
	}
	return named.String(), nil
}

func normalize(ref string) (reference.Named, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return nil, classed{errdefs.ErrInvalidArgument, fmt.Errorf("image reference %q: %w", ref, err)}
	}
	return named, nil
}

// repoNames says which RepoTag (empty for none) and RepoDigest a record stands
// for. ok is false for records whose name is no reference, as those named by ID.
func repoNames(record string, target digest.Digest) (tag, dgst string, ok bool) {
	if _, err := digest.Parse(record); err == nil {
		return "", "", false
	}
	named, err := reference.ParseNormalizedNamed(record)
	if err != nil {
		return "", "", false
	}
	if d, isDigested := named.(reference.Digested); isDigested {
		return "", named.Name() + "@" + d.Digest().String(), true
	}
	if t, isTagged := named.(reference.Tagged); isTagged {
		tag = named.Name() + ":" + t.Tag()
	}
	return tag, named.Name() + "@" + target.String(), true
}

// idPrefix returns the digits that ref may be a prefix of an ID with.
func idPrefix(ref string) (string, bool) {
	digits := strings.TrimPrefix(ref, string(digest.SHA256)+":")
	return digits, len(digits) >= minPrefix && hexDigits.MatchString(digits)
}
