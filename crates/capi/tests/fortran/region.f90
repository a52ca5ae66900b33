! A mapped region from Fortran: an array in it, persisted ranges, errors in stat and errmsg. Prints ok.
!
!   region PATH
program region_test
  use, intrinsic :: iso_c_binding
  use forebay
  implicit none
  integer(c_int64_t), parameter :: n = 1000
  type(forebay_region) :: region, again, other
  type(c_ptr) :: address
  real(c_double), pointer :: values(:), seen(:)
  real(c_double), target :: source(10)
  integer(c_int64_t) :: bytes
  character(len=:), allocatable :: tier, durability
  character(len=200) :: text
  character(len=4096) :: path
  integer :: i, code

  call get_command_argument(1, path)
  call region%map(path, 8 * n, mode='x+')
  call region%info(tier, durability)
  call must(tier == 'dram' .and. durability == 'process crash', 'info')
  call region%data(address, bytes)
  call must(bytes == 8 * n, 'bytes')
  call c_f_pointer(address, values, [n])
  call must(all(values == 0), 'fresh memory is zero')
  values = [(real(i, c_double), i = 1, int(n))]
  call region%persist(offset=0_c_int64_t, bytes=80_c_int64_t)
  call region%persist(offset=80_c_int64_t)
  call region%persist()
  source = -1
  call region%copy_persist(8_c_int64_t, c_loc(source), 80_c_int64_t)
  call must(values(1) == 1 .and. all(values(2:11) == -1) .and. values(12) == 12, 'copy')

  call again%map(path, tier='dram', mode='r')
  call again%data(address, bytes)
  call c_f_pointer(address, seen, [bytes / 8])
  call must(size(seen) == n .and. all(seen == values), 'both see one memory')
  call again%persist(stat=code, errmsg=text)
  call must(code == FB_PERMISSION_DENIED .and. index(text, 'PermissionDenied') == 1, 'read only')
  call again%map(path, stat=code)
  call must(code == FB_USAGE, 'mapped twice')
  call other%map(path, 8_c_int64_t, stat=code, errmsg=text)
  call must(code == FB_OPTION_MISMATCH .and. index(text, '8000') > 0, 'another size')
  call other%map(path, 0_c_int64_t, stat=code)
  call must(code == FB_USAGE, 'no bytes')
  call other%persist(stat=code)
  call must(code == FB_USAGE, 'not mapped')
  call region%persist(8 * n + 1, stat=code)
  call must(code == FB_USAGE, 'outside')
  call region%copy_persist(8 * n - 8, c_loc(source), 16_c_int64_t, stat=code)
  call must(code == FB_USAGE, 'copy outside')
  call again%unmap()
  call region%unmap()
  call region%unmap()
  print '(a)', 'ok'

contains

  subroutine must(good, what)
    logical, intent(in) :: good
    character(len=*), intent(in) :: what
    if (good) return
    print '(2a)', 'wrong: ', what
    error stop 1
  end subroutine

end program
