! One rank of a Fortran simulation: writes T(nx, ny), its ranks side by side along y.
!
!   module=$(pkg-config --variable=fortrandir forebay)/forebay.f90
!   gfortran $module writer.f90 $(pkg-config --libs forebay) -o writer
!   ./writer heat 0 2  &  ./writer heat 1 2  &  python3 reader.py heat
!
! C and Python see the same array as T[ny][nx]: dimensions are reversed, bytes are not. An error ends the
! program with its text and the exit status of that error.
program writer
  use, intrinsic :: iso_c_binding, only: c_double, c_float, c_int32_t, c_int64_t
  use forebay
  implicit none
  integer, parameter :: nx = 6, ny = 8, steps = 3
  type(forebay_writer) :: channel
  real(c_double), allocatable :: t(:, :)
  integer(c_int64_t) :: version
  integer :: rank, size, columns, i, j, step

  rank = number(2)
  size = number(3)
  if (rank < 0 .or. rank >= size) error stop 'writer: RANK is from 0 to SIZE - 1'
  if (mod(ny, size) /= 0) error stop 'writer: SIZE must divide the 8 columns'
  columns = ny / size
  allocate (t(nx, columns))

  call channel%open(word(1), rank=rank, size=size)
  if (rank == 0) call channel%set_attribute('unit', 'kelvin')
  do step = 1, steps
    call channel%begin_step(version)
    do j = 1, columns
      do i = 1, nx
        ! Indices from 0 and of the whole array, as the readers count.
        t(i, j) = element(version, i - 1, j - 1 + rank * columns)
      end do
    end do
    call channel%put('T', t, shape=[nx, ny], start=[0, rank * columns])
    ! Every second column, of another type: the compiler packs what is not contiguous.
    call channel%put('coarse', real(t(:, 1::2), c_float), shape=[nx, ny / 2], start=[0, rank * columns / 2])
    if (rank == 0) call channel%put('step', int(step, c_int32_t))
    call channel%end_step()
  end do
  call channel%close()

contains

  !> What an element must be: different for every version and index.
  pure function element(version, i, j) result(value)
    integer(c_int64_t), intent(in) :: version
    integer, intent(in) :: i, j
    real(c_double) :: value
    value = 10000 * real(version, c_double) + 100 * j + i
  end function

  function word(position) result(text)
    integer, intent(in) :: position
    character(len=:), allocatable :: text
    integer :: length
    call get_command_argument(position, length=length)
    allocate (character(len=length) :: text)
    call get_command_argument(position, text)
  end function

  function number(position) result(value)
    integer, intent(in) :: position
    integer :: value, status
    character(len=:), allocatable :: text
    text = word(position)
    read (text, *, iostat=status) value
    if (status /= 0) error stop 'usage: writer NAME RANK SIZE'
  end function
end program
