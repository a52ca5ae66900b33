/*
 * A program that goes on where it was ended: started again with more steps, it begins behind its newest whole step.
 *
 *   cc restart.c $(pkg-config --cflags --libs forebay) -o restart
 *   ./restart /scratch/ck 100
 */

#include <forebay.h>
#include <stdio.h>
#include <stdlib.h>

static double u[1000][1000];

static void must(int code)
{
    if (code < 0) {
        fprintf(stderr, "%s\n", fb_last_error());
        exit(fb_exit_code(code));
    }
}

int main(int argc, char **argv)
{
    const uint64_t shape[2] = {1000, 1000}, steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    uint64_t step = 0, first = 0;
    fb_checkpoint *ck = NULL;
    int found;

    must(fb_checkpoint_open(argc > 1 ? argv[1] : "ck", NULL, &ck));
    must(fb_checkpoint_protect(ck, "u", FB_FLOAT64, 2, shape, NULL, NULL, u));
    must(found = fb_checkpoint_restore_latest(ck, &step));
    if (found == FB_OK)
        first = step + 1;
    for (step = first; step < steps; step++) {
        for (int i = 0; i < 1000; i++)
            for (int j = 0; j < 1000; j++)
                u[i][j] += (double)step;
        must(fb_checkpoint_save(ck, step));
    }
    must(fb_checkpoint_close(&ck));
    printf("from step %d to %d: %.1f\n", (int)first, (int)steps - 1, u[999][999]);
    return 0;
}
