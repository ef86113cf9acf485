// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0
//
// What "nmeter -d0 %3t" of a busybox that has it prints first: the time of day with
// milliseconds.

#include <stdio.h>
#include <time.h>

int main(void) {
	struct timespec now;
	if (clock_gettime(CLOCK_REALTIME, &now) != 0)
		return 1;
	struct tm *day = gmtime(&now.tv_sec);
	printf("%02d:%02d:%02d.%03ld\n", day->tm_hour, day->tm_min, day->tm_sec, now.tv_nsec / 1000000);
	return 0;
}
