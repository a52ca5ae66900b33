! A program that goes on where it was ended: started again with more steps, it begins behind its newest whole step.
!
!   module=$(pkg-config --variable=fortrandir forebay)/forebay.f90
!   gfortran $module restart.f90 $(pkg-config --libs forebay) -o restart
!   ./restart /scratch/ck 100

program restart
  use forebay
  implicit none
  type(forebay_checkpoint) :: ck
  double precision, allocatable, target :: u(:, :)
  character(len=4096) :: path, number
  integer :: last, step, steps

  call get_command_argument(1, path)
  call get_command_argument(2, number)
  read (number, *) steps
  allocate (u(1000, 1000), source=0d0)

  call ck%open(trim(path))
  call ck%protect('u', u)
  last = -1
  call ck%restore_latest(last)
  do step = last + 1, steps - 1
    u = u + step
    call ck%save(step)
  end do
  call ck%close()
  print '(a,i0,a,i0,a,f0.1)', 'from step ', last + 1, ' to ', steps - 1, ': ', u(1000, 1000)
end program
