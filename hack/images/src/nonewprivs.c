// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Installed setuid root: tells whether that had an effect.

#include <stdio.h>
#include <unistd.h>

int main(void) {
	printf("Effective uid: %d\n", (int)geteuid());
	return 0;
}
