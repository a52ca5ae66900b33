/* Two ranks or more that exchange long messages from and to arrays, and reduce them.
 *
 * Usage: mpiexec -n N ranks MEBIBYTES. Rank 0 prints sums.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
    int rank, size;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int n = (count > 1 ? atoi(words[1]) : 8) * (1 << 20) / (int)sizeof(double);
    double *own = malloc((size_t)n * sizeof *own), *got = malloc((size_t)n * sizeof *got), sum = 0, all = 0;
    if (!own || !got) MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 0; i < n; i++) own[i] = rank + 1 + i % 13;
    for (int round = 0; round < 3; round++) {
        int to = (rank + 1) % size, from = (rank + size - 1) % size;
        MPI_Sendrecv(own, n, MPI_DOUBLE, to, 0, got, n, MPI_DOUBLE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < n; i++) own[i] = 0.5 * (own[i] + got[i]);
    }
    MPI_Allreduce(own, got, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++) sum += got[i];
    MPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Bcast(own, n, MPI_DOUBLE, size - 1, MPI_COMM_WORLD);
    if (rank == 0) printf("ranks %d %.17g %.17g\n", size, all, own[n / 3]);
    MPI_Finalize();
    return 0;
}
