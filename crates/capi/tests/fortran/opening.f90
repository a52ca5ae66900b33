! What becomes of a space that is opened again, by the options mode, replace and finished.
!
!   opening first | die | second
!
! "first" writes two versions and ends, "die" writes two and says so by the file "died", then waits to be killed;
! "second" is another run, which finds what these left. They print ok.
program opening
  use, intrinsic :: iso_c_binding, only: c_double, c_int, c_int64_t
  use forebay
  implicit none
  character(len=*), parameter :: common = 'quota=16MiB; retention=forever; timeout=1'
  character(len=500) :: text
  character(len=8) :: role

  interface
    function wait_for_signal() result(code) bind(C, name='pause')
      import :: c_int
      integer(c_int) :: code
    end function
  end interface

  call get_command_argument(1, role)
  select case (role)
  case ('first')
    call two_versions('done', dies=.false.)
  case ('die')
    call two_versions('stopped', dies=.true.)
  case default
    call stopped()
    call done()
  end select
  print '(a)', 'ok'

contains

  subroutine must(good, what)
    logical, intent(in) :: good
    character(len=*), intent(in) :: what
    if (good) return
    print '(4a)', 'wrong: ', what, ': ', trim(text)
    error stop 1
  end subroutine

  subroutine put(writer)
    type(forebay_writer), intent(inout) :: writer
    integer(c_int64_t) :: version
    call writer%begin_step(version)
    call writer%put('x', real(version, c_double))
    call writer%end_step()
  end subroutine

  subroutine two_versions(name, dies)
    character(len=*), intent(in) :: name
    logical, intent(in) :: dies
    type(forebay_writer) :: writer
    integer :: unit
    integer(c_int) :: ignored
    call writer%open(name, options=common)
    call put(writer)
    call put(writer)
    if (dies) then
      open (newunit=unit, file='died', status='new')
      close (unit)
      ignored = wait_for_signal()
    end if
    call writer%close()
  end subroutine

  !> The space as a writer finds it: stat of opening, and the version that comes first.
  subroutine opens(name, options, stat, first)
    character(len=*), intent(in) :: name, options
    integer, intent(out) :: stat
    integer(c_int64_t), intent(out) :: first
    type(forebay_writer) :: writer
    integer :: ignored
    first = -1
    text = ''
    call writer%open(name, options=common // '; ' // options, stat=stat, errmsg=text)
    if (stat /= FB_OK) return
    call writer%resume(first)
    call put(writer)
    call writer%close(stat=ignored)
  end subroutine

  !> Two versions of a writer that was killed, which no reader has read.
  subroutine stopped()
    integer :: stat
    integer(c_int64_t) :: first
    call opens('stopped', 'mode=w', stat, first)
    call must(stat == FB_NAME_IN_USE, 'w of a dead space that is unread')
    call must(index(text, 'replace') > 0, 'the text names replace')
    call opens('stopped', 'mode=a; replace=true', stat, first)
    call must(stat == FB_USAGE, 'replace goes with w')
    call opens('stopped', 'replace=true', stat, first)
    call must(stat == FB_OK .and. first == 0, 'replace starts over')
  end subroutine

  !> Two versions of a writer that has finished.
  subroutine done()
    type(forebay_reader) :: reader
    integer :: stat
    integer(c_int64_t) :: first, version
    real(c_double) :: x
    logical :: found
    call opens('done', 'mode=x', stat, first)
    call must(stat == FB_NAME_IN_USE, 'x refuses a space that is there')
    call reader%open('done', options='timeout=1; component=waits')
    call reader%begin_step(found, stat=stat, errmsg=text)
    call must(stat == FB_TIMED_OUT, 'a reader of another run waits')
    call must(index(text, 'finished') > 0, 'the text names finished')
    call reader%close()
    call opens('done', 'mode=a', stat, first)
    call must(stat == FB_OK .and. first == 2, 'a goes on behind what is complete')
    call reader%open('done', options='timeout=5; finished=true')
    do version = 0, 2
      call reader%begin_step(found, first)
      call reader%get('x', x)
      call must(found .and. first == version .and. x == real(version, c_double), 'all versions are read')
      call reader%end_step()
    end do
    call reader%close()
    call opens('done', 'mode=w', stat, first)
    call must(stat == FB_OK .and. first == 0, 'w starts over')
  end subroutine
end program
