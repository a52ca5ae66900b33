/*
 * What the C tests share: calls and conditions that end the program with their line and the whole error text.
 */
#ifndef EXPECT_H
#define EXPECT_H

#include <forebay.h>
#include <stdio.h>
#include <stdlib.h>

static void expect(int line, const char *call, long found, long wanted)
{
    if (found != wanted) {
        fprintf(stderr, "line %d: %s is %ld (%s), not %ld (%s)\n%s\n", line, call, found,
                fb_error_name((int)found), wanted, fb_error_name((int)wanted), fb_last_error());
        exit(1);
    }
}

#define EXPECT(wanted, call) expect(__LINE__, #call, (call), (wanted))
#define TRUE(condition) expect(__LINE__, #condition, (condition) ? 1 : 0, 1)

#endif
