! A checkpoint from Fortran: arrays of every type and rank saved and restored, pointers that move, errors in stat and
! errmsg. Prints ok.
!
!   checkpoint DIR
program checkpoint_test
  use, intrinsic :: iso_c_binding
  use forebay
  implicit none
  type(forebay_checkpoint) :: ck, other
  real(c_double), allocatable, target :: u(:, :), v(:, :)
  real(c_float), target :: r0, r4(2, 3, 4, 5)
  integer(c_int32_t), target :: i1(7)
  integer(c_int64_t), target :: i3(2, 2, 2)
  real(c_double), pointer :: nothing(:)
  integer(c_int64_t) :: step, run, rejected, lost
  character(len=:), allocatable :: text, tier, durability
  character(len=400) :: message
  character(len=4096) :: path
  real(c_double) :: value
  integer :: small, code, rank, size, levels
  logical :: found, yes

  call get_command_argument(1, path)
  allocate (u(0:3, -1:4), v(0:3, -1:4))
  call ck%open(path, levels='dram; file', when='steps:2', options='timeout=20; program=fortran')
  call ck%info(run, rank, size, levels)
  call must(run == 1 .and. rank == 0 .and. size == 1 .and. levels == 2, 'info')
  call ck%protect('u', u)
  call ck%protect('r0', r0)
  call ck%protect('r4', r4)
  call ck%protect('i1', i1)
  call ck%protect('i3', i3, shape=[2, 2, 4], start=[0, 0, 2])
  small = -1
  call ck%restore_latest(small, found)
  call must(.not. found .and. small == -1, 'nothing yet')
  call ck%report(text, stat=code)
  call must(code == FB_NOT_YET .and. text == '', 'no report yet')
  call ck%need(4, yes)
  call must(yes, 'need 4')
  call ck%need(5_c_int64_t, yes)
  call must(.not. yes, 'need 5')
  call ck%prepare()
  call fill(u, 3)
  r0 = 3
  r4 = 3.5
  i1 = 3
  i3 = 33
  call ck%save(3)
  call ck%wait(step=step)
  call must(step == 3, 'wait')
  call fill(v, 4)
  ! Two buffers in turn: the same array lies elsewhere now.
  call ck%protect('u', v)
  call ck%save(4_c_int64_t)
  call ck%wait(level=0)
  v = 0
  r4 = 0
  call ck%restore(4)
  call must(same(v, 4) .and. all(r4 == 3.5), 'restored from the new place')
  call ck%level(0, tier=tier, durability=durability, step=step)
  call must(tier == 'dram' .and. durability == 'process crash' .and. step == 4, 'level')
  call ck%statistic('saves', value)
  call must(value == 2, 'statistic')

  call ck%save(4, stat=code, errmsg=message)
  call must(code == FB_VERSION_OUT_OF_ORDER .and. index(message, 'VersionOutOfOrder') == 1, 'twice')
  call ck%save(-4, stat=code)
  call must(code == FB_USAGE, 'negative')
  call ck%protect('part', u(::2, :), stat=code, errmsg=message)
  call must(code == FB_USAGE .and. index(message, 'not contiguous') > 0, 'not contiguous')
  nullify (nothing)
  call ck%protect('nothing', nothing, stat=code)
  call must(code == FB_USAGE, 'nothing')
  call ck%protect('w', u, shape=[4], stat=code)
  call must(code == FB_USAGE, 'misfit')
  call ck%protect('w', u, shape=[4, 5], stat=code)
  call must(code == FB_BOX_OUTSIDE_SHAPE, 'outside')
  call ck%open(path, stat=code)
  call must(code == FB_USAGE, 'open twice')
  call other%open(path, stat=code)
  call must(code == FB_NAME_IN_USE, 'rank held')
  call other%open(trim(path) // '-other', levels='tape', stat=code, errmsg=message)
  call must(code == FB_USAGE .and. index(message, 'tape') > 0, 'no such level')
  call other%save(1, stat=code)
  call must(code == FB_USAGE, 'not open')
  call ck%close()
  call ck%close()

  u = 0
  call ck%open(path, levels='dram; file', options='program=fortran')
  call ck%protect('u', u)
  call ck%protect('r0', r0)
  r0 = 0
  small = -1
  call ck%restore_latest(small, found)
  call must(found .and. small == 4 .and. same(u, 4) .and. r0 == 3, 'restart')
  call ck%report(text, rejected, lost)
  call must(index(text, 'restored step 4 of run 1') == 1 .and. rejected == 0 .and. lost == -1, 'report')
  call ck%close()

  ! The best step stays behind the newest.
  call ck%open(trim(path) // '-best', levels='file,keep=1,best=1:largest')
  call ck%protect('u', u)
  do small = 1, 5
    call fill(u, small)
    call ck%save(small, metric=real(10 - abs(small - 2), c_double))
  end do
  call ck%save(6, metric=log(-u(0, -1)), stat=code)
  call must(code == FB_USAGE, 'not a number')
  call ck%restore(2)
  call must(same(u, 2), 'the best')
  call ck%restore(3, stat=code)
  call must(code == FB_VERSION_GONE, 'neither the best nor the newest')
  call ck%close()
  print '(a)', 'ok'

contains

  subroutine fill(values, of)
    real(c_double), intent(out) :: values(:, :)
    integer, intent(in) :: of
    integer :: i, j
    do j = 1, ubound(values, 2)
      do i = 1, ubound(values, 1)
        values(i, j) = 1000 * of + 10 * j + i
      end do
    end do
  end subroutine

  logical function same(values, of)
    real(c_double), intent(in) :: values(:, :)
    integer, intent(in) :: of
    real(c_double) :: wanted(ubound(values, 1), ubound(values, 2))
    call fill(wanted, of)
    same = all(values == wanted)
  end function

  subroutine must(good, what)
    logical, intent(in) :: good
    character(len=*), intent(in) :: what
    if (good) return
    print '(2a)', 'wrong: ', what
    error stop 1
  end subroutine

end program
