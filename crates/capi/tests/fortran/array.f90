! An array larger than its budget from Fortran: written, read, gathered, pinned; errors in stat and errmsg. Prints ok.
!
!   array PATH
program array_test
  use, intrinsic :: iso_c_binding
  use forebay
  implicit none
  integer(c_int64_t), parameter :: n = 2_c_int64_t**19, mebi = 2_c_int64_t**20
  type(forebay_pool) :: pool
  type(forebay_array) :: array, other
  type(forebay_pin) :: pin
  type(c_ptr) :: address
  real(c_double), target :: values(4096), items(3)
  real(c_double), pointer :: seen(:)
  integer(c_int64_t) :: indices(3), bytes, offset, count
  character(len=:), allocatable :: method
  character(len=200) :: text
  character(len=4096) :: path
  integer :: i, j, code

  call get_command_argument(1, path)
  call pool%new(mebi, tile_max=65536_c_int64_t)
  call array%open(pool, path, bytes=8 * n, mode='x+', tile=4096_c_int64_t)
  call array%info(bytes=bytes, method=method)
  call must(bytes == 8 * n .and. len(method) > 0, 'info')
  do i = 0, int(n) - 1, 4096
    values = [(real(i + j, c_double), j = 0, 4095)]
    call array%write(8_c_int64_t * i, c_loc(values), 8_c_int64_t * 4096)
  end do
  call must(pool%statistic('written') > 0, 'written')
  call must(pool%statistic('frame_bytes') + pool%statistic('table_bytes') <= mebi, 'the budget')
  call array%read(8 * (n - 4096), c_loc(values), 8_c_int64_t * 4096)
  call must(values(1) == n - 4096 .and. values(4096) == n - 1, 'read')

  indices = [n - 1, 0_c_int64_t, 12345_c_int64_t]
  call array%gather(indices, 8_c_int64_t, c_loc(items))
  call must(all(items == real(indices, c_double)), 'gather')
  items = -1
  call array%scatter(indices, 8_c_int64_t, c_loc(items))
  call array%prefetch(0_c_int64_t, 4096_c_int64_t)
  call pin%pin(array, 0_c_int64_t, address, offset, count)
  call c_f_pointer(address, seen, [count / 8])
  call must(offset == 0 .and. count == 4096 .and. seen(1) == -1 .and. seen(2) == 1, 'pin')
  call array%close(stat=code, errmsg=text)
  call must(code == FB_USAGE .and. index(text, 'pinned') > 0, 'closed while pinned')
  call pin%unpin()
  call pin%pin(array, 1_c_int64_t, address, offset, count, write=.true.)
  call c_f_pointer(address, seen, [count / 8])
  seen(1) = -2
  call pin%unpin()
  call array%flush()
  call array%close()

  call array%open(pool, path, mode='r')
  call array%read(offset, c_loc(values), 8_c_int64_t)
  call must(values(1) == -2, 'what was pinned to write')
  call array%write(0_c_int64_t, c_loc(values), 8_c_int64_t, stat=code, errmsg=text)
  call must(code == FB_PERMISSION_DENIED .and. index(text, 'PermissionDenied') == 1, 'read only')
  call other%open(pool, path, bytes=8 * n + 1, mode='r', stat=code)
  call must(code == FB_DAMAGED, 'too short')
  call array%close()
  call pool%free()
  print '(a)', 'ok'

contains

  subroutine must(condition, what)
    logical, intent(in) :: condition
    character(len=*), intent(in) :: what
    if (.not. condition) error stop what
  end subroutine
end program
