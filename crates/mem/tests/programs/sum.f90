! A Fortran program that knows nothing of windows: allocatable arrays, swept, written to a file and read back.
program sums
    implicit none
    integer, parameter :: n = 2 * 1024 * 1024
    real(8), allocatable :: a(:), b(:)
    character(len=4096) :: folder
    integer :: i, unit
    call get_command_argument(1, folder)
    allocate (a(n), b(n))
    do i = 1, n
        a(i) = i
    end do
    b = 2 * a
    open (newunit=unit, file=trim(folder)//'/sums', form='unformatted', access='stream', status='replace')
    write (unit) b
    a = 0
    rewind (unit)
    read (unit) a
    close (unit, status='delete')
    if (any(a /= b)) stop 1
    if (sum(a) /= real(n, 8) * (n + 1)) stop 2
    deallocate (a, b)
    print '(a)', 'ok'
end program
