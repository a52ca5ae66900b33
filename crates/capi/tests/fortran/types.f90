! Every type and number of dimensions goes through a space and comes back; errors come in stat and errmsg.
!
!   types all     prints ok
!   types stop    an error without stat: must end with exit status 2 and the text on standard error
program types
  use, intrinsic :: iso_c_binding
  use forebay
  implicit none
  type(forebay_writer) :: writer
  type(forebay_reader) :: reader
  character(len=8) :: role
  integer(c_int64_t) :: version

  call get_command_argument(1, role)
  call writer%open('types', rank=0, size=1, options='timeout = 5; quota=64MiB;')
  if (role == 'stop') then
    call writer%end_step()
    stop 0
  end if

  call wrong_calls()
  call writer%begin_step(version)
  call put_all()
  call describe_all()
  call writer%set_attribute('unit', 'm/s')
  call writer%set_attribute('cells', 24)
  call writer%set_attribute('dt', 0.25_c_double)
  call writer%end_step()
  call writer%close()
  call reader%open('types', options='component=check')
  call get_all()
  call reader%close()
  print '(a)', 'ok'

contains

  subroutine must(good, what)
    logical, intent(in) :: good
    character(len=*), intent(in) :: what
    if (good) return
    print '(2a)', 'wrong: ', what
    error stop 1
  end subroutine

  !> Numbers that differ everywhere and fit each type.
  pure function many(n) result(values)
    integer, intent(in) :: n
    real(c_double) :: values(n)
    integer :: i
    values = [(real(3 * i + 1, c_double), i = 1, n)]
  end function

  subroutine put_all()
    real(c_double) :: d(120), part(4, 6)
    integer(c_int32_t) :: i4(120)
    integer(c_int64_t) :: i8(120)
    character(len=8) :: names(5)
    d = many(120)
    i4 = int(d, c_int32_t)
    i8 = int(d, c_int64_t) * 2_c_int64_t**40

    call writer%put('r4_0', real(d(1), c_float))
    call writer%put('r4_1', real(d(:5), c_float))
    call writer%put('r4_2', real(reshape(d, [2, 3]), c_float))
    call writer%put('r4_3', real(reshape(d, [2, 3, 4]), c_float))
    call writer%put('r4_4', real(reshape(d, [2, 3, 4, 5]), c_float))
    call writer%put('r8_0', d(1))
    call writer%put('r8_1', d(:5))
    call writer%put('r8_2', reshape(d, [2, 3]))
    call writer%put('r8_3', reshape(d, [2, 3, 4]))
    call writer%put('r8_4', reshape(d, [2, 3, 4, 5]))
    call writer%put('i4_0', i4(1))
    call writer%put('i4_1', i4(:5))
    call writer%put('i4_2', reshape(i4, [2, 3]))
    call writer%put('i4_3', reshape(i4, [2, 3, 4]))
    call writer%put('i4_4', reshape(i4, [2, 3, 4, 5]))
    call writer%put('i8_0', i8(1))
    call writer%put('i8_1', i8(:5))
    call writer%put('i8_2', reshape(i8, [2, 3]))
    call writer%put('i8_3', reshape(i8, [2, 3, 4]))
    call writer%put('i8_4', reshape(i8, [2, 3, 4, 5]))
    ! Four pieces of an (8, 12) array, with extents of both integer kinds.
    part = reshape(d, [4, 6])
    call writer%put('pieces', part, shape=[8, 12], start=[0, 0])
    call writer%put('pieces', part + 1000, shape=[8_c_int64_t, 12_c_int64_t], &
      start=[4_c_int64_t, 0_c_int64_t])
    call writer%put('pieces', part + 2000, shape=[8, 12], start=[0, 6])
    call writer%put('pieces', part + 3000, shape=[8, 12], start=[4, 6])
    ! Objects of 0 to 3 dimensions, many in a call.
    names = [character(len=8) :: 'a', 'block 2', 'c', 'd', 'e']
    call writer%put_many(names(:2), reshape(d, [2, 3, 4, 2]))
    call writer%put_many(names(3:4), reshape(i8, [2, 3, 2]))
    call writer%put_many([character(len=4) :: 'n1', 'n2', 'n3'], i4(:3))
    call writer%put_many(names(5:), reshape(real(d, c_float), [5, 1]))
    call writer%put_many(names(:0), d(1:0))
    ! No elements at all.
    call writer%put('empty', d(1:0))
  end subroutine

  subroutine get_all()
    real(c_float) :: f0, f1(5), f2(2, 3), f3(2, 3, 4), f4(2, 3, 4, 5)
    real(c_double) :: d0, d1(5), d2(2, 3), d3(2, 3, 4), d4(2, 3, 4, 5), d(120), whole(8, 12), spread_out(4, 4)
    integer(c_int32_t) :: i0, i1(5), i2(2, 3), i3(2, 3, 4), i4(2, 3, 4, 5)
    integer(c_int64_t) :: l0, l1(5), l2(2, 3), l3(2, 3, 4), l4(2, 3, 4, 5), number, newest
    integer(c_int64_t), allocatable :: extents(:)
    character(len=:), allocatable :: text
    character(len=400) :: message
    integer(c_int) :: dtype
    integer :: stat
    logical :: found
    type(forebay_reader) :: kept

    d = many(120)
    call reader%wait(0_c_int64_t)
    call reader%latest(found, newest)
    call must(found .and. newest == 0, 'latest')
    call reader%begin_step(found, version, timeout=5.0_c_double, stat=stat)
    call must(found .and. version == 0 .and. stat == FB_OK, 'the first version')
    call reader%open_version(0_c_int64_t, kept)
    call reader%open_version(0_c_int64_t, kept, stat=stat)
    call must(stat == FB_USAGE, 'a handle that is in use')
    call kept%get('r8_0', d0); call must(d0 == d(1), 'r8_0 of an opened version')
    call kept%close()

    call reader%get('r4_0', f0); call must(f0 == real(d(1), c_float), 'r4_0')
    call reader%get('r4_1', f1); call must(all(f1 == real(d(:5), c_float)), 'r4_1')
    call reader%get('r4_2', f2); call must(all(f2 == real(reshape(d, shape(f2)), c_float)), 'r4_2')
    call reader%get('r4_3', f3); call must(all(f3 == real(reshape(d, shape(f3)), c_float)), 'r4_3')
    call reader%get('r4_4', f4); call must(all(f4 == real(reshape(d, shape(f4)), c_float)), 'r4_4')
    call reader%get('r8_0', d0); call must(d0 == d(1), 'r8_0')
    call reader%get('r8_1', d1); call must(all(d1 == d(:5)), 'r8_1')
    call reader%get('r8_2', d2); call must(all(d2 == reshape(d, shape(d2))), 'r8_2')
    call reader%get('r8_3', d3); call must(all(d3 == reshape(d, shape(d3))), 'r8_3')
    call reader%get('r8_4', d4); call must(all(d4 == reshape(d, shape(d4))), 'r8_4')
    call reader%get('i4_0', i0); call must(i0 == int(d(1)), 'i4_0')
    call reader%get('i4_1', i1); call must(all(i1 == int(d(:5))), 'i4_1')
    call reader%get('i4_2', i2); call must(all(i2 == int(reshape(d, shape(i2)))), 'i4_2')
    call reader%get('i4_3', i3); call must(all(i3 == int(reshape(d, shape(i3)))), 'i4_3')
    call reader%get('i4_4', i4); call must(all(i4 == int(reshape(d, shape(i4)))), 'i4_4')
    call reader%get('i8_0', l0); call must(l0 == int(d(1), c_int64_t) * 2_c_int64_t**40, 'i8_0')
    call reader%get('i8_1', l1); call must(all(l1 == int(d(:5), c_int64_t) * 2_c_int64_t**40), 'i8_1')
    call reader%get('i8_2', l2)
    call must(all(l2 == int(reshape(d, shape(l2)), c_int64_t) * 2_c_int64_t**40), 'i8_2')
    call reader%get('i8_3', l3)
    call must(all(l3 == int(reshape(d, shape(l3)), c_int64_t) * 2_c_int64_t**40), 'i8_3')
    call reader%get('i8_4', l4)
    call must(all(l4 == int(reshape(d, shape(l4)), c_int64_t) * 2_c_int64_t**40), 'i8_4')

    call reader%variable_shape('pieces', extents, dtype)
    call must(all(extents == [8, 12]) .and. dtype == FB_FLOAT64, 'shape of pieces')
    call reader%get('pieces', whole)
    call must(all(whole(:4, :6) == reshape(d, [4, 6])), 'first piece')
    call must(all(whole(5:, :6) == reshape(d, [4, 6]) + 1000), 'second piece')
    call must(all(whole(:4, 7:) == reshape(d, [4, 6]) + 2000), 'third piece')
    call must(all(whole(5:, 7:) == reshape(d, [4, 6]) + 3000), 'fourth piece')
    ! A box across all pieces, into an array that is not contiguous.
    spread_out = -1
    call reader%get('pieces', spread_out(::2, ::2), start=[3, 5])
    call must(all(spread_out(::2, ::2) == whole(4:5, 6:7)), 'box across pieces')
    call must(all(spread_out(2::2, :) == -1) .and. all(spread_out(:, 2::2) == -1), 'nothing beside the box')

    call many_come_back(d)
    call descriptions_come_back()

    call reader%get_attribute('unit', text)
    call must(text == 'm/s', 'unit')
    call reader%get_attribute('cells', number)
    call must(number == 24, 'cells')
    call reader%get_attribute('dt', d0)
    call must(d0 == 0.25_c_double, 'dt')

    call reader%get('r8_2', f2, stat=stat, errmsg=message)
    call must(stat == FB_BUFFER_MISMATCH .and. index(message, 'float64') > 0, 'type: ' // trim(message))
    call reader%get('r8_2', d3, stat=stat)
    call must(stat == FB_BOX_OUTSIDE_SHAPE, 'another number of dimensions')
    call reader%get('nothing', d0, stat=stat)
    call must(stat == FB_UNKNOWN_VARIABLE, 'unknown variable')
    call reader%get('pieces', d2, start=[0.0, 1.0], stat=stat)
    call must(stat == FB_USAGE, 'start that is not of integers')
    call reader%get_attribute('none', number, stat=stat)
    call must(stat == FB_UNKNOWN_KEY, 'unknown attribute')
    call reader%end_step()
    call reader%begin_step(found, stat=stat)
    call must(.not. found .and. stat == FB_END_OF_STREAM, 'end of the stream')
    call reader%missed(number)
    call must(number == 0, 'nothing was missed')
  end subroutine

  subroutine describe_all()
    real(c_double) :: rows(3, 2)
    integer :: stat
    rows = reshape(many(6), [3, 2])
    call writer%put('rows', rows, shape=[3_c_int64_t, FB_CONCAT])
    call writer%put('rows', rows(:, 1:1), shape=[3_c_int64_t, FB_CONCAT], start=[0, 0])
    call writer%put('rows', rows, shape=[3_c_int64_t, FB_CONCAT], start=[0, 1], stat=stat)
    call must(stat == FB_BOX_OUTSIDE_SHAPE, 'a place in a concatenated variable')
    call writer%describe_dims('rows', [character(len=8) :: 'axis', 'particle'])
    call writer%describe('rows', 'units', 'm')
    call writer%describe('rows', 'level', 3_c_int64_t)
    call writer%describe('rows', 'scale', 0.5_c_double)
    call writer%describe('', 'time', 0.25_c_double)
  end subroutine

  subroutine descriptions_come_back()
    character(len=:), allocatable :: text
    integer(c_int64_t), allocatable :: extents(:)
    integer(c_int64_t) :: number
    real(c_double) :: value, rows(3, 3)
    integer :: stat
    call reader%variable_shape('rows', extents)
    call must(all(extents == [3, 3]), 'shape of rows')
    call reader%get('rows', rows)
    call must(all(rows(:, :2) == reshape(many(6), [3, 2])) .and. all(rows(:, 3) == rows(:, 1)), 'rows')
    call reader%described_dim('rows', 1, text)
    call must(text == 'axis', 'first dimension')
    call reader%described_dim('rows', 2, text)
    call must(text == 'particle', 'second dimension')
    call reader%described_dim('rows', 3, text, stat=stat)
    call must(stat == FB_UNKNOWN_KEY .and. text == '', 'third dimension')
    call reader%described('rows', 'units', text)
    call must(text == 'm', 'units of rows')
    call reader%described('rows', 'level', number)
    call must(number == 3, 'level of rows')
    call reader%described('rows', 'scale', value)
    call must(value == 0.5_c_double, 'scale of rows')
    call reader%described('', 'time', value)
    call must(value == 0.25_c_double, 'time of the version')
    call reader%described('', 'none', value, stat=stat)
    call must(stat == FB_UNKNOWN_KEY, 'unknown attribute of the version')
  end subroutine

  subroutine many_come_back(d)
    real(c_double), intent(in) :: d(120)
    real(c_double) :: blocks(2, 3, 4, 2), block(2, 3, 4), spread_out(2, 3, 4, 4)
    integer(c_int64_t) :: planes(2, 3, 2)
    integer(c_int32_t) :: numbers(3)
    real(c_float) :: rows(5, 1)
    character(len=400) :: message
    integer :: stat

    call reader%get_many([character(len=8) :: 'a', 'block 2'], blocks)
    call must(all(blocks == reshape(d, shape(blocks))), 'two blocks')
    call reader%get('block 2', block)
    call must(all(block == blocks(:, :, :, 2)), 'the second block by itself')
    ! Another order, into an array that is not contiguous.
    spread_out = -1
    call reader%get_many([character(len=8) :: 'block 2', 'a'], spread_out(:, :, :, ::2))
    call must(all(spread_out(:, :, :, ::2) == blocks(:, :, :, 2:1:-1)), 'the other order')
    call must(all(spread_out(:, :, :, 2::2) == -1), 'nothing between the blocks')
    call reader%get_many(['c', 'd'], planes)
    call must(all(planes == reshape(int(d, c_int64_t) * 2_c_int64_t**40, shape(planes))), 'two planes')
    call reader%get_many(['n1', 'n2', 'n3'], numbers)
    call must(all(numbers == int(d(:3), c_int32_t)), 'three numbers')
    call reader%get_many(['e'], rows)
    call must(all(rows(:, 1) == real(d(:5), c_float)), 'one row')

    call reader%get_many(['a', 'c'], blocks, stat=stat, errmsg=message)
    call must(stat == FB_BUFFER_MISMATCH .and. index(message, 'object=1') > 0, 'another type: ' // trim(message))
    call reader%get_many(['a'], blocks, stat=stat, errmsg=message)
    call must(stat == FB_USAGE .and. index(message, '1 names for 2 objects') > 0, 'miscounted: ' // trim(message))
  end subroutine

  subroutine wrong_calls()
    type(forebay_writer) :: other
    character(len=400) :: message
    integer :: stat, rank, size

    call writer%get_rank(rank, size)
    call must(rank == 0 .and. size == 1, 'rank and size')
    call writer%open('types', stat=stat, errmsg=message)
    call must(stat == FB_USAGE .and. index(message, 'open already') > 0, 'opened twice')
    call other%open('other', options='quotta=1GiB', stat=stat, errmsg=message)
    call must(stat == FB_UNKNOWN_KEY .and. index(message, '`quota`') > 0, 'unknown option: ' // trim(message))
    call other%begin_step(stat=stat)
    call must(stat == FB_USAGE, 'never opened')
    call writer%put('T', [1, 2, 3], stat=stat)
    call must(stat == FB_STEP_STATE, 'put outside a step')
    call writer%begin_step()
    call writer%put('T', [1, 2, 3], shape=[3, 3], stat=stat, errmsg=message)
    call must(stat == FB_USAGE .and. index(message, 'one for each dimension') > 0, 'shape of other rank')
    call writer%put('T', [1, 2, 3], shape=[4], start=[2], stat=stat)
    call must(stat == FB_BOX_OUTSIDE_SHAPE, 'box outside')
    call writer%put_many(['a', 'b'], [1, 2, 3], stat=stat, errmsg=message)
    call must(stat == FB_USAGE .and. index(message, '2 names for 3 objects') > 0, 'miscounted: ' // trim(message))
    call writer%put_many([character(len=2) :: 'a', ''], [1, 2], stat=stat, errmsg=message)
    call must(stat == FB_BAD_NAME .and. index(message, 'object=1') > 0, 'a name without letters')
    call writer%abort_step()
  end subroutine
end program
