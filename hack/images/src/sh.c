// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0
//
// /bin/sh of an image that Kubernetes' tests take for a newer busybox than Debian's: that one,
// unless a variable has a name that is none to a shell, such as "a-b". Debian's drops these.

#include <ctype.h>
#include <unistd.h>

extern char **environ;

static int is_name(const char *s) {
	if (*s == '=' || isdigit((unsigned char)*s))
		return 0;
	for (; *s && *s != '='; s++)
		if (!isalnum((unsigned char)*s) && *s != '_')
			return 0;
	return 1;
}

int main(int argc, char **argv) {
	const char *shell = "/bin/busybox";
	(void)argc;
	for (char **e = environ; *e; e++)
		if (!is_name(*e))
			shell = "/bin/bash";
	execv(shell, argv);
	return 127;
}
